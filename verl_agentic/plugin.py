"""The one module verl imports (entry-point group ``verl.plugins``); importing it registers everything.

verl calls nothing after the import, and logs an exception raised by it at DEBUG level only: ``+recipe=NAME`` would
then become a plain key and stock verl would train, with exit code 0. So every failure is printed to stderr, and ends
the process when its command line asks for a recipe. Only the standard library is imported outside the ``try``.
"""

import re
import sys

_RECIPE_OVERRIDE = re.compile(r"\+{0,2}recipe(@[^=]*)?=")


def asks_for_recipe(arguments: list[str]) -> bool:
    """Whether one of the command-line arguments chooses a recipe (``+recipe=NAME``, ``+recipe@_global_=NAME``)."""
    return any(_RECIPE_OVERRIDE.match(argument) for argument in arguments)


def report_failure(error: Exception) -> None:
    """Print one sentence on a failed registration; raise SystemExit if the command line asks for a recipe."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    print(
        f"verl-agentic: the plugin could not register itself with verl, so its recipes are unavailable ({reason}); "
        "repair the installation, or set VERL_USE_EXTERNAL_PLUGINS=none to run verl without it.",
        file=sys.stderr,
    )
    # SystemExit passes verl's `except Exception`; argv[0] is "-m" while `python -m` still imports the package.
    if asks_for_recipe(sys.argv[1:]):
        raise SystemExit(1)


try:
    from verl_agentic.startup.registration import register_with_verl

    register_with_verl(report_failure)
except Exception as error:
    report_failure(error)
