"""dep_search: sub-questions with dependencies, search, and an LRU memory filled by the policy's own conclusions.

Source: Liu et al. 2026, "Dep-Search: Learning Dependency-Aware Reasoning Traces with Persistent Memory".
"""

from __future__ import annotations

from pathlib import Path

from verl_agentic.core.method import Method
from verl_agentic.methods.dep_search.actions import GRAMMAR
from verl_agentic.methods.dep_search.environment import DepSearchEnvironment, check_environment, embeds
from verl_agentic.methods.dep_search.score import check_knobs, score

METHOD = Method(
    name="dep_search",
    grammar=GRAMMAR,
    prompts=Path(__file__).parent / "prompts",
    environment=DepSearchEnvironment,
    score=score,
    check_knobs=check_knobs,
    check_environment=check_environment,
    embeds=embeds,
    resumed_environment=DepSearchEnvironment.resumed,
)
