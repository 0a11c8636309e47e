"""The folders in which Hydra will look for recipes and for the schema of our own keys."""

import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

RECIPES = Path(__file__).resolve().parents[2] / "recipes"

_SEARCH_PATH_KEY = "hydra.searchpath"


class ConfigFileError(ValueError):
    """A configuration file cannot be read as a mapping."""


def read_mapping(text: str, file: Path) -> dict[str, Any]:
    """The YAML mapping in `text`, which stands in `file`; an empty file gives an empty one. Raises ConfigFileError."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigFileError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error
    if content is not None and not isinstance(content, dict):
        raise ConfigFileError(f"{file} must hold keys and values, not a {type(content).__name__}")
    return content or {}


def visible_folders(search_path: Iterable[str], arguments: list[str]) -> list[Path]:
    """Existing folders Hydra searches for configuration files.

    Args:
        search_path: entries of Hydra's search path (``file://...``, ``pkg://...``; other schemes hold no folder).
        arguments: the command line; its ``--config-dir`` and ``hydra.searchpath=[...]``, and the search path set in
            the file of its ``--config-name``, are added.
    """
    entries = [*search_path, *_option_values(arguments, "--config-dir", "-cd"), *_overridden_search_path(arguments)]
    folders = [folder for entry in entries for folder in _folders_of(entry)]
    for name in _option_values(arguments, "--config-name", "-cn"):
        folders += [found for entry in _own_search_path(folders, name) for found in _folders_of(entry)]
    return folders


def _folders_of(entry: str) -> list[Path]:
    scheme, separator, location = entry.partition("://")
    if not separator or scheme == "file":
        candidates = [Path(location or entry)]
    elif scheme == "pkg":
        candidates = [Path(place) for place in _package_places(location)]
    else:
        candidates = []
    return [folder for folder in candidates if folder.is_dir()]


def _package_places(location: str) -> list[str]:
    name = location.strip("/").replace("/", ".")
    try:
        spec = importlib.util.find_spec(name)
    except ImportError:  # Hydra warns about such an entry and ignores it
        return []
    return list(spec.submodule_search_locations or []) if spec else []


def _option_values(arguments: list[str], *names: str) -> Iterator[str]:
    for position, argument in enumerate(arguments):
        option, separator, value = argument.partition("=")
        if option in names and separator:
            yield value
        elif option in names and position + 1 < len(arguments):
            yield arguments[position + 1]


def _overridden_search_path(arguments: list[str]) -> list[str]:
    values = [argument.partition("=")[2] for argument in arguments if argument.lstrip("+").startswith(_SEARCH_PATH_KEY)]
    return [entry.strip(" '\"") for value in values for entry in value.strip("[]").split(",")]


def _own_search_path(folders: list[Path], config_name: str) -> list[str]:
    files = [folder / f"{config_name.removesuffix('.yaml')}.yaml" for folder in folders]
    contents = [read_mapping(file.read_text(encoding="utf-8"), file) for file in files if file.is_file()]
    return [entry for content in contents for entry in (content.get("hydra") or {}).get("searchpath") or []]
