"""The Hydra search-path entry that makes ``+recipe=NAME`` find this package's recipes without any flag."""

import sys

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from verl_agentic.startup.config_folders import RECIPES, ConfigFileError, visible_folders
from verl_agentic.startup.override_check import OverrideError, check_overrides


class RecipeSearchPath(SearchPathPlugin):
    """Append the recipes to every Hydra search path, after refusing a command line that cannot be meant."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Append the recipes; SystemExit with one sentence for an unknown recipe, an unknown key or a broken file."""
        # A path instead of pkg://recipes: other wheels ship a top-level package `recipes`, and the one whose
        # __init__.py wins may not even be importable. The folder beside this package is ours in every install mode.
        search_path.append("verl-agentic", f"file://{RECIPES}")
        arguments = sys.argv[1:]
        try:
            check_overrides(arguments, visible_folders([entry.path for entry in search_path.get_path()], arguments))
        except (OverrideError, ConfigFileError) as error:
            raise SystemExit(f"verl-agentic: {error}") from error


def register() -> None:
    """Register the search path with Hydra; repeated calls change nothing."""
    Plugins.instance().register(RecipeSearchPath)
