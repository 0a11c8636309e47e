"""The training runs of agentic_rag_r1 on the demo world: `make bench-agentic_rag_r1`.

Compared, 30 steps and two seeds each: the method, the method without its memory, and search_r1. Every other ablation:
one run of 5 steps, to show that it trains and that all it logs is finite; their scores are not compared. The runs are
validated before and after training only.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from method_runs import NOT_COMPARED, Plan, main, planned

METHOD = "agentic_rag_r1"
COMPARED_RECIPES = ("agentic_rag_r1_cpu", "agentic_rag_r1_no_memory_cpu", "search_r1_cpu")
ABLATIONS = (
    "agentic_rag_r1_no_rejection_cpu",
    "agentic_rag_r1_no_process_cpu",
    "agentic_rag_r1_no_retrieval_process_cpu",
    "agentic_rag_r1_no_memory_process_cpu",
    "agentic_rag_r1_released_cpu",
    "agentic_rag_r1_steps30_cpu",
    "agentic_rag_r1_sft_cpu",
    "agentic_rag_r1_sft_only_cpu",
)
PLAN = Plan(
    method=METHOD,
    runs=tuple(
        replace(run, overrides=(f"trainer.test_freq={run.steps}",))
        for run in (*planned(COMPARED_RECIPES, (1, 2), 30), *planned(ABLATIONS, (1,), 5, NOT_COMPARED))
    ),
    comparisons=tuple((COMPARED_RECIPES[0], other) for other in COMPARED_RECIPES[1:]),
)

if __name__ == "__main__":
    sys.exit(main(PLAN, __doc__))
