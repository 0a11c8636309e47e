"""agentic_rag_r1 on the demo world: against itself without memory, against search_r1, and every other ablation briefly.

    python benchmarks/agentic_rag_r1.py            (make bench-agentic_rag_r1)

Writes benchmarks/results/agentic_rag_r1_cpu.json after every run, and at the end .png (curves) and .html beside it. An
interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

import sys

from method_runs import NOT_COMPARED, Plan, main, planned

MAIN, NO_MEMORY, BASELINE = "agentic_rag_r1_cpu", "agentic_rag_r1_no_memory_cpu", "search_r1_cpu"
ABLATIONS = tuple(
    f"agentic_rag_r1_{name}_cpu"
    for name in (
        *("no_rejection", "no_process", "no_retrieval_process", "no_memory_process"),
        *("sft", "sft_only", "steps30", "released"),
    )
)
PLAN = Plan(
    method="agentic_rag_r1",
    runs=(
        *planned((MAIN, NO_MEMORY, BASELINE), seeds=(1, 2), steps=30),
        *planned(ABLATIONS, seeds=(1,), steps=5, status=NOT_COMPARED),
    ),
    comparisons=((MAIN, NO_MEMORY), (MAIN, BASELINE)),
)

if __name__ == "__main__":
    sys.exit(main(PLAN, __doc__))
