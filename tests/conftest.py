"""Fixtures that several rooms' tests use."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real questions, passages and predictions, which is not part of the repository."""
    folder = Path(os.environ.get("VERL_AGENTIC_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data folder {folder} is not here (set VERL_AGENTIC_SHARED to its parent)")
    return folder
