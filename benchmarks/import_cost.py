"""Cost of the plugin on `import verl`: median seconds with and without it, in interleaved fresh processes.

    python benchmarks/import_cost.py [--repetitions 9]

Prints one line to read, and one JSON object: median_with_s, median_without_s, ratio, repetitions.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

# fails when the plugin is not loaded as asked, so that the two figures are never of the same thing
IMPORT = "import sys, verl; sys.exit(('verl_agentic.plugin' in sys.modules) is not (sys.argv[1] == 'auto'))"


def seconds_of_import(plugins: str) -> float:
    """Wall seconds of a fresh process that imports verl with VERL_USE_EXTERNAL_PLUGINS set to `plugins`."""
    environment = os.environ | {"VERL_USE_EXTERNAL_PLUGINS": plugins}
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORT, plugins], env=environment, check=True, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def measure(repetitions: int) -> dict[str, float]:
    """Medians over `repetitions` pairs; which of the two goes first alternates, against drift and caches."""
    seconds: dict[str, list[float]] = {"auto": [], "none": []}
    for plugins in seconds:
        seconds_of_import(plugins)  # fills the file cache
    for repetition in range(repetitions):
        for plugins in sorted(seconds, reverse=bool(repetition % 2)):
            seconds[plugins].append(seconds_of_import(plugins))
    with_plugin, without = (statistics.median(seconds[plugins]) for plugins in ("auto", "none"))
    return {
        "median_with_s": round(with_plugin, 3),
        "median_without_s": round(without, 3),
        "ratio": round(with_plugin / without, 3),
        "repetitions": repetitions,
    }


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=9)
    figures = measure(parser.parse_args().repetitions)
    print(
        f"import verl: {figures['median_with_s']} s with the plugin, {figures['median_without_s']} s without, "
        f"ratio {figures['ratio']}"
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
