"""The folder `OUT.building` in which a build works: locked, with a state from which a killed build goes on."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retriever_server.building.chunks import write_atomically
from retriever_server.errors import IndexRefused

LOCK, STATE = "lock", "build.json"
FORMAT = 1


class Workplace:
    """What a build has done so far; `index` is the folder that becomes the index, `chunks` that of the vectors."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.index = folder / "index"
        self.chunks = folder / "chunks"
        self.replaced = folder / "replaced"
        self._fresh: dict[str, Any] = {"format": FORMAT, "of": identity}
        self.state = self._fresh
        self.taken = not self._others()  # whether what is there is this run's own, to drop when it fails early

    def resume(self) -> bool:
        """Take up what an earlier run left; returns whether there was anything.

        Raises IndexRefused, naming what differs, when it is another build's. Without finished passages it is dropped.
        """
        left = self._left()
        if left is None or left.get("format") != FORMAT or not {"of", "passages"} <= set(left):
            self.clear()
            return False
        differing = _differences(left["of"], self._fresh["of"])
        if differing:
            raise IndexRefused(
                f"The unfinished build in {self.folder} differs from this one in {', '.join(differing)}; finish it "
                "with its own options, or pass --restart to discard it."
            )
        self.state = left
        return True

    def note(self, **values: Any) -> None:
        """Write further values into the state."""
        self.state = self.state | values
        text = json.dumps(self.state, indent=1).encode()
        write_atomically(self.folder / STATE, lambda file: file.write(text))

    def discard(self) -> None:
        """Drop what an unfinished build left; raises IndexRefused when something else lies there."""
        self._left()
        self.clear()

    def clear(self) -> None:
        """Drop everything but the lock; the next build begins anew."""
        self.taken, self.state = True, self._fresh
        for path in (self.index, self.chunks, self.replaced):
            shutil.rmtree(path, ignore_errors=True)
        # last, since without it what a killed run had still to drop would be taken for somebody's own
        for name in (f"{STATE}.unfinished", STATE):
            (self.folder / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Drop the whole workplace, in an order that a kill may end anywhere."""
        self.clear()
        (self.folder / LOCK).unlink()
        try:
            self.folder.rmdir()
        except OSError as error:
            if error.errno not in (
                errno.ENOTEMPTY,
                errno.EEXIST,
            ):  # else the next build has begun there, or somebody keeps a file there
                raise

    def move_into_place(self, out: Path) -> None:
        """Give the finished index its name, in place of an index that is there."""
        if out.exists():
            shutil.rmtree(self.replaced, ignore_errors=True)  # left by a run that ended before its last step
            out.rename(self.replaced)
        try:
            self.index.rename(out)
        except OSError:
            self.restore(out)
            raise

    def restore(self, out: Path) -> None:
        """Bring back the old index, where a run ended between moving it away and naming the new one."""
        if self.replaced.exists() and not out.exists():
            self.replaced.rename(out)

    def _left(self) -> dict[str, Any] | None:
        others = self._others()
        if not others:
            return None
        try:
            left = json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise IndexRefused(
                f"{self.folder} is in the way and is not an unfinished build ({', '.join(sorted(others)[:4])}); move "
                "it or choose another folder."
            ) from error
        if not isinstance(left, dict):
            raise IndexRefused(f"{self.folder / STATE} is not the state of a build; move it or choose another folder.")
        return left

    def _others(self) -> list[str]:
        return [path.name for path in self.folder.iterdir() if path.name not in (LOCK, f"{STATE}.unfinished")]


@contextmanager
def claim(out: Path, identity: dict[str, Any]) -> Iterator[Workplace]:
    """Make and lock the workplace of the index `out`; raises IndexRefused when another build has it (case P41).

    It goes when the build succeeds, or fails before it has encoded anything; else it stays, to be taken up again.
    """
    folder = out.with_name(f"{out.name}.building")
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise IndexRefused(
                f"Another build is at work in {folder}; wait for it or choose another folder."
            ) from error
        if not _same_file(folder / LOCK, lock.fileno()):
            raise IndexRefused(f"Another build has just finished in {folder}; run this one again.")
        workplace = Workplace(folder, identity)
        workplace.restore(out)
        try:
            yield workplace
        except Exception:
            if workplace.taken and not any(workplace.chunks.glob("*.npy")):
                workplace.remove()
            raise
        workplace.remove()


def _same_file(path: Path, descriptor: int) -> bool:
    return path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor))


def _differences(left: dict[str, Any], now: dict[str, Any]) -> list[str]:
    left, now = _flat(left), _flat(now)
    return [
        f"{name} ({left.get(name)!r}, now {now.get(name)!r})"
        for name in sorted(left | now)
        if left.get(name) != now.get(name)
    ]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat
