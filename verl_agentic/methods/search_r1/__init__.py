"""search_r1: think, search, answer; the baseline that the other methods compare with.

Source: Jin et al. 2025, "Search-R1: Training LLMs to Reason and Leverage Search Engines with Reinforcement Learning".
"""

from __future__ import annotations

from pathlib import Path

from verl_agentic.core.grammar import ActionTag, Grammar
from verl_agentic.core.method import Method
from verl_agentic.methods.search_r1.environment import SearchEnvironment
from verl_agentic.methods.search_r1.score import check_knobs, score

METHOD = Method(
    name="search_r1",
    grammar=Grammar(actions=(ActionTag("search"), ActionTag("answer", terminal=True))),
    prompts=Path(__file__).parent / "prompts",
    environment=SearchEnvironment,
    score=score,
    check_knobs=check_knobs,
)
