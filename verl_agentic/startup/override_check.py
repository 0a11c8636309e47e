"""Refuse unknown recipes and unknown ``agentic.`` keys before anything is started, naming the nearest known one."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.errors import HydraException

from verl_agentic.core.suggest import did_you_mean
from verl_agentic.startup.known_keys import ROOT, Tree, all_paths, is_known, known_keys

RECIPE_GROUP = "recipe"
NEAR = 0.8  # similarity from which another word is taken for a misspelling of ours


class OverrideError(ValueError):
    """An override names a recipe or a key that does not exist."""


def check_overrides(arguments: list[str], folders: list[Path]) -> None:
    """Check the recipes and the keys of ours that the command line names.

    Args:
        arguments: command line; flags, and overrides Hydra itself cannot parse, are left to Hydra.
        folders: the folders that Hydra searches (``recipe/NAME.yaml`` and ``agentic/**.yaml`` are looked up there).

    Raises:
        OverrideError: the first override that names an unknown recipe or an unknown key.
        ConfigFileError: a schema or recipe file in the folders cannot be read.
    """
    overrides = list(_parsed(arguments))
    for override in overrides:
        if override.key_or_group == RECIPE_GROUP:
            _check_recipes(_choices(override), folders)
    _check_group(overrides)
    own_keys = [each for each in overrides if _looks_like_ours(each.key_or_group)]
    tree = known_keys(folders) if own_keys else {}
    for override in own_keys:
        _check_keys(override, tree, folders)


def _parsed(arguments: list[str]) -> Iterator[Override]:
    parser = OverridesParser.create()
    for argument in arguments:
        if "=" in argument and not argument.startswith("-"):
            try:
                yield parser.parse_override(argument)
            except HydraException:  # reported by Hydra itself, in its own words
                continue


def _choices(override: Override) -> list[str]:
    value = override.value()
    values = value.list if isinstance(value, ChoiceSweep) else value
    return [str(choice) for choice in (values if isinstance(values, list) else [values])]


def _check_group(overrides: list[Override]) -> None:
    """A misspelt `recipe` would become an ordinary new key, and stock verl would train."""
    for override in overrides:
        root = re.split(r"[./]", override.key_or_group)[0]
        added = override.is_add() or override.is_force_add()
        if added and root != RECIPE_GROUP and get_close_matches(root, [RECIPE_GROUP], cutoff=NEAR):
            raise OverrideError(f"unknown group {root!r} in '{override.input_line}'; did you mean {RECIPE_GROUP!r}?")


def _check_recipes(names: list[str], folders: list[Path]) -> None:
    available = sorted({file.stem for folder in folders for file in (folder / RECIPE_GROUP).glob("*.yaml")})
    for name in names:
        relative = f"{RECIPE_GROUP}/{name.removesuffix('.yaml')}.yaml"
        if not any((folder / relative).is_file() for folder in folders):
            raise OverrideError(
                f"unknown recipe {name!r}{did_you_mean(name, available)} "
                f"(available: {', '.join(available) or 'none, the installation lacks its recipes'})"
            )


def _looks_like_ours(key: str) -> bool:
    root = re.split(r"[./]", key)[0]
    return bool(get_close_matches(root, [ROOT], cutoff=NEAR))


def _check_keys(override: Override, tree: Tree, folders: list[Path]) -> None:
    key = override.key_or_group
    if isinstance(override.value(), str) and any((folder / key).is_dir() for folder in folders):
        return  # a choice in a config group such as +agentic/retriever=local, which Hydra checks
    for path in _leaf_paths(key, override.value()):
        root, *below = path.split(".")
        if root != ROOT or not is_known(tree, below):
            raise OverrideError(
                f"unknown key {path!r}{did_you_mean(path, all_paths(tree))} "
                f"(keys of {ROOT}: {', '.join(sorted(tree)) or 'none'})"
            )


def _leaf_paths(path: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _leaf_paths(f"{path}.{name}", below)
    else:
        yield path
