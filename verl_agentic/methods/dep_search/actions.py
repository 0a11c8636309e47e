"""The tags of dep_search, and the names of what its actions note."""

from __future__ import annotations

from verl_agentic.core.grammar import ActionTag, Grammar

DECOMPOSE, RETRIEVE, MEMORY, CONCLUSION = "Decompose", "Retrieve", "Memory", "Conclusion"
GRAMMAR = Grammar(
    actions=(
        *map(ActionTag, (DECOMPOSE, RETRIEVE, MEMORY)),
        ActionTag(CONCLUSION, may_be_empty=True),
        ActionTag("answer", terminal=True),
    ),
    think=None,
    observation=("information", "Memory_result"),
)

# Of all conclusions: the tokens of their summaries, and how many summaries were empty or cut by the token limit.
CONCLUSION_TOKENS, CONCLUSION_EMPTY, CONCLUSION_CUT = "conclusion/tokens", "conclusion/empty", "conclusion/cut"
# Entries that were added to the memory, entries of which a recall was the first since, and all that recalls brought.
STORED, REUSED, RECALLED = "memory/stored", "memory/reused", "memory/recalled"
FIGURES = (CONCLUSION_TOKENS, CONCLUSION_EMPTY, CONCLUSION_CUT, STORED, REUSED, RECALLED)
