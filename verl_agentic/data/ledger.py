"""Results appended to a file as they are made, so that a command that was stopped goes on where it was.

JSON lines: a header with the format's version, the command and its settings, then one line a result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FORMAT = 1


class Ledger:
    """The results of one command with one set of settings.

    Args:
        path: the file; made where it is missing.
        command: who writes it.
        settings: what the results depend on; plain JSON values.

    Attributes:
        entries: the results that the file held when it was opened.

    Raises:
        ValueError: the file is of another command, of other settings, of a newer format, or no ledger.
    """

    def __init__(self, path: Path, command: str, settings: Mapping[str, Any]):
        self.path = path
        header = {"format": FORMAT, "command": command, "settings": dict(settings)}
        self.entries = self._open(header)

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write results to the disk; they are there when this returns."""
        text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def _open(self, header: dict[str, Any]) -> list[dict[str, Any]]:
        lines = self._whole_lines()
        if not lines:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            self.append([header])
            return []
        try:
            found, *entries = [json.loads(line) for line in lines]
        except ValueError:
            raise ValueError(f"{self.path} is damaged; delete it to start again.") from None
        self._check(found, header)
        return entries

    def _whole_lines(self) -> list[str]:
        """The file's lines; one that was cut when its writer was stopped is removed from the file."""
        if not self.path.is_file():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        return whole.decode("utf-8", errors="replace").splitlines()

    def _check(self, found: Any, header: dict[str, Any]) -> None:
        if not isinstance(found, dict) or not {"format", "command", "settings"} <= found.keys():
            raise ValueError(f"{self.path} is not a file that this command wrote; delete it or choose another --out.")
        if found["format"] != FORMAT:
            raise ValueError(f"{self.path} has format {found['format']}, this version reads {FORMAT}; delete it.")
        if found["command"] != header["command"]:
            raise ValueError(f"{self.path} is of the command {found['command']!r}; choose another --out.")
        ours = json.loads(json.dumps(header["settings"]))
        if odd := [name for name in ours | found["settings"] if ours.get(name) != found["settings"].get(name)]:
            before, now = found["settings"].get(odd[0]), ours.get(odd[0])
            raise ValueError(
                f"{self.path} was begun with {odd[0]} {before!r}, this run has {now!r}; go on with the same settings, "
                "choose another --out, or delete it to start again."
            )
