"""Question and gold answers out of a verl data row, whichever of the field's usual shapes it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def question_and_golds(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The question as asked and its gold aliases.

    Args:
        row: a row of verl's parquet as the agent loop or the reward manager gets it: `extra_info.question` (or, where
            it is missing, `question`, or the last message of `raw_prompt`) and `reward_model.ground_truth`, which is a
            string, a list of strings, or a mapping with the key `target`.

    Raises:
        ValueError: no question, or no gold answer.
    """
    info = row.get("extra_info") or {}
    question = info.get("question") or row.get("question") or _last_message(row.get("raw_prompt"))
    truth = (row.get("reward_model") or {}).get("ground_truth")
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    golds = [target] if isinstance(target, str) else [str(t) for t in (target if target is not None else [])]
    if not question:
        raise ValueError("a data row has no question: set extra_info.question")
    if not golds:
        raise ValueError(f"the question {question[:60]!r} has no gold answer: set reward_model.ground_truth.target")
    return str(question), golds


def _last_message(messages: Any) -> str | None:
    return messages[-1].get("content") if messages is not None and len(messages) else None
