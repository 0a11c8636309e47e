"""Whether this machine can hold the project: Python, disk, memory. Run as a file, before anything is installed."""

import os
import shutil
import sys

PYTHON = (3, 11)
# Measured: the installed environment takes 2.6 GB, pip's downloads as much again for a moment; a CPU run peaks at 5 GB.
DISK_GB = 6
MEMORY_GB = 7


def problems(python: tuple[int, int], disk_gb: float, memory_gb: float) -> list[str]:
    """One sentence for each thing the machine lacks."""
    found = []
    if python < PYTHON:
        found.append(
            f"Python {python[0]}.{python[1]} is too old, 3.11 or newer is needed; set PYTHON=/path/to/python3.11"
        )
    if disk_gb < DISK_GB:
        found.append(f"only {disk_gb:.1f} GB are free in this folder, {DISK_GB} GB are needed; free some")
    if memory_gb < MEMORY_GB:
        found.append(f"this machine has {memory_gb:.1f} GB of memory, a CPU run needs {MEMORY_GB} GB; use a larger one")
    return found


def main() -> int:
    """Print what is lacking; 1 if anything is."""
    disk = shutil.disk_usage(os.getcwd()).free / 1e9
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    found = problems((sys.version_info[0], sys.version_info[1]), disk, memory)
    for sentence in found:
        print(f"verl-agentic: {sentence}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
