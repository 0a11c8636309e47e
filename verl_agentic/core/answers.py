"""Answer metrics: exact match, F1 and cover match, each the maximum over the gold aliases.

One normalisation family for now, the one of SQuAD and Search-R1: lower case, punctuation deleted, the articles a, an
and the deleted, white space folded. Where that leaves nothing of a gold or a prediction ("A", "The"), the form before
the articles were deleted is kept, so that two different answers never become equal by both becoming empty.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_YES_NO = frozenset({"yes", "no", "noanswer"})


def normalize_answer(text: str) -> str:
    """Normal form of an answer (SQuAD, Rajpurkar et al. 2016, evaluation script; punctuation deleted)."""
    bare = " ".join(text.lower().translate(_PUNCTUATION).split())
    without_articles = " ".join(_ARTICLES.sub(" ", bare).split())
    return without_articles or bare


def _golds(golds: str | Sequence[str]) -> list[str]:
    listed = [golds] if isinstance(golds, str) else list(golds)
    if not listed:
        raise ValueError("a question needs at least one gold answer, got an empty list")
    return [normalize_answer(g) for g in listed]


def exact_match(prediction: str, golds: str | Sequence[str]) -> float:
    """1.0 if the normal form of `prediction` equals that of any gold, else 0.0; an empty prediction scores 0.0."""
    normal = normalize_answer(prediction)
    return float(bool(normal) and normal in _golds(golds))


def _f1(prediction: str, gold: str, yes_no_rule: bool) -> float:
    if yes_no_rule and prediction != gold and (prediction in _YES_NO or gold in _YES_NO):
        return 0.0
    predicted, wanted = prediction.split(), gold.split()
    common = sum((Counter(predicted) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def f1_score(prediction: str, golds: str | Sequence[str], yes_no_rule: bool = True) -> float:
    """Token F1 in [0, 1], the best over the golds.

    Args:
        prediction: the answer.
        golds: gold aliases.
        yes_no_rule: as HotpotQA's official script does, 0 where one of the two is yes, no or noanswer and they differ;
            False counts tokens there too, as MuSiQue's script does.
    """
    normal = normalize_answer(prediction)
    return max(_f1(normal, gold, yes_no_rule) for gold in _golds(golds))


def cover_match(prediction: str, golds: str | Sequence[str]) -> float:
    """1.0 if any gold's normal form occurs in the prediction's as a run of whole tokens, else 0.0."""
    normal = f" {normalize_answer(prediction)} "
    return float(any(gold and f" {gold} " in normal for gold in _golds(golds)))
