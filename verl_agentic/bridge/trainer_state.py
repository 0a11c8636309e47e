"""What this plugin must remember over a resume: a small file beside verl's own checkpoint."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from verl_agentic.core.selection import SelectionState

logger = logging.getLogger(__name__)

FILE_NAME = "agentic.json"
VERSION = 1


def save_state(folder: Path, selection: SelectionState) -> None:
    """Write the state into a checkpoint's folder, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{FILE_NAME}.{os.getpid()}.tmp"
    unfinished.write_text(json.dumps({"version": VERSION, "selection": selection.to_dict()}), encoding="utf-8")
    os.replace(unfinished, folder / FILE_NAME)


def load_state(folder: Path) -> SelectionState:
    """The state in a checkpoint's folder; a new one, with a warning, where the checkpoint has none.

    Raises:
        ValueError: the file is of a newer version, or damaged.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        logger.warning("the checkpoint has no %s: the counters of agentic.selection start from 0", path)
        return SelectionState()
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        version = int(stored["version"])
        if version <= VERSION:
            return SelectionState.from_dict(stored["selection"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); restore it, or delete it to start the counters of agentic.selection from 0"
        ) from error
    raise ValueError(
        f"{path} is of version {version} and this verl-agentic reads up to {VERSION}; resume with the newer "
        "verl-agentic that wrote it, or delete the file to start the counters of agentic.selection from 0"
    )
