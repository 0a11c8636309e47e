"""Fixtures that several rooms' tests use."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from retriever_server.process import start_server
from verl_agentic.demo.prepare import PrepareConfig, prepare
from verl_agentic.demo.run import SERVER_OPTIONS, build_index
from verl_agentic.demo.splits import SplitSizes

ROOT = Path(__file__).resolve().parent.parent
# A deadline is a clock, and clocks of busy machines say nothing of the code.
settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")
SMALL = SplitSizes(train=64, val=8, test=24, long_train=4, long_test=4, shared_train=4, shared_test=4)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real questions, passages and predictions, which is not part of the repository."""
    folder = Path(os.environ.get("VERL_AGENTIC_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip(f"the real data folder {folder} is not here (set VERL_AGENTIC_SHARED to its parent)")
    return folder


@pytest.fixture(scope="session")
def demo_files(tmp_path_factory) -> Path:
    """World, small question files, and the packaged cold start."""
    out = tmp_path_factory.mktemp("demo")
    prepare(PrepareConfig(out=out, splits=SMALL, cold_start="packaged"), line=lambda text: None)
    return out


@pytest.fixture(scope="session")
def retriever_url(demo_files):
    """A real server over the demo's corpus."""
    with start_server(build_index(demo_files, line=lambda text: None), options=SERVER_OPTIONS) as server:
        yield server.url
