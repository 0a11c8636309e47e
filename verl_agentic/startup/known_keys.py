"""The keys allowed under ``agentic:``: whatever the schema files and recipes in the visible folders define."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_agentic.startup.config_folders import read_mapping

ROOT = "agentic"

_PACKAGE_HEADER = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)

Tree = dict[str, Any]


def known_keys(folders: list[Path]) -> Tree:
    """Merge the ``agentic`` nodes of all schema and recipe files into one tree, whose leaves are their values.

    Raises:
        ConfigFileError: a file cannot be read.
    """
    tree: Tree = {}
    for folder in folders:
        for group in (ROOT, "recipe"):
            for file in sorted((folder / group).rglob("*.yaml")):
                _merge(tree, _agentic_node(file, file.parent.relative_to(folder)))
    return tree


def is_known(tree: Tree, path: list[str]) -> bool:
    """Whether `path` (key names below ``agentic``) exists; below an empty mapping, a list or null all is allowed."""
    node: Any = tree
    for name in path:
        if node is None or node == {} or isinstance(node, list):
            return True
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


def all_paths(tree: Tree, prefix: str = ROOT) -> Iterator[str]:
    """Dotted paths of every key of the tree, inner ones included."""
    for name, value in tree.items():
        yield f"{prefix}.{name}"
        if isinstance(value, dict):
            yield from all_paths(value, f"{prefix}.{name}")


def _agentic_node(file: Path, group: Path) -> Tree:
    text = file.read_text(encoding="utf-8")
    content = read_mapping(text, file)
    header = _PACKAGE_HEADER.search(text)
    package = header.group(1) if header else "_group_"
    for name in reversed(_package_parts(package, group)):
        content = {name: content}
    node = content.get(ROOT)
    return node if isinstance(node, dict) else {}


def _package_parts(package: str, group: Path) -> list[str]:
    if package == "_global_":
        return []
    dotted = package.replace("_group_", ".".join(group.parts)).removeprefix("_global_.")
    return dotted.split(".")


def _merge(tree: Tree, addition: Tree) -> None:
    for name, value in addition.items():
        name = str(name).partition("@")[0]
        if isinstance(value, dict) and isinstance(tree.get(name), dict):
            _merge(tree[name], value)
        elif name != "defaults" and not tree.get(name):
            tree[name] = value
