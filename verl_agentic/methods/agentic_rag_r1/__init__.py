"""agentic_rag_r1: reasoning actions on a stack memory, rewarded by outcome and by action.

Source: AgenticRAG-R1 (stack memory, action-level process rewards, information-aware rejection).
"""

from __future__ import annotations

from pathlib import Path

from verl_agentic.core.grammar import ActionTag, Grammar
from verl_agentic.core.method import Method
from verl_agentic.methods.agentic_rag_r1.asks import asks, judged_kinds
from verl_agentic.methods.agentic_rag_r1.environment import StackEnvironment
from verl_agentic.methods.agentic_rag_r1.score import check_knobs, score

METHOD = Method(
    name="agentic_rag_r1",
    grammar=Grammar(
        actions=(
            *map(ActionTag, ("plan", "reasoning", "search", "backtrack", "summary")),
            ActionTag("conclusion", terminal=True),
        ),
        think=None,
    ),
    prompts=Path(__file__).parent / "prompts",
    environment=StackEnvironment,
    score=score,
    check_knobs=check_knobs,
    asks=asks,
    judged_kinds=judged_kinds,
    judge_prompts=Path(__file__).parent / "judge_prompts",
)
