"""Writing a file or a folder so that no half of it is ever found under its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` under which to write a file or a folder; `path` is replaced when the block ends well.

    Missing parent folders are made. When the block fails, what it wrote is removed and `path` is as before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    _remove(partial)
    try:
        yield partial
        if path.is_dir():  # a folder cannot be renamed over another
            shutil.rmtree(path)
        partial.replace(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
