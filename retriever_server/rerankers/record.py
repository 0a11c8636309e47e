"""The record that declares a reranker, and what every reranker offers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from retriever_server.errors import RerankerError
from retriever_server.records import refuse_unfit

Scores = NDArray[np.float32]
Request = tuple[str, Sequence[str]]  # a query and the contents that are scored for it
KINDS = ("cross_encoder", "yes_no", "late_interaction")
DTYPES = ("auto", "float32", "float16", "bfloat16")
TEMPLATE_KEYS = ("{query}", "{document}")


@dataclass(frozen=True)
class RerankerRecord:
    """Everything that a reranker's score depends on besides query and document.

    `kind` is `cross_encoder` (a sequence classifier with one output, whose score is the raw logit), `yes_no` (a
    language model asked by `template`, whose score is the probability of `yes` against `no` as the next token, in 0..1)
    or `late_interaction` (token vectors of the encoder that `model` names; the score is the mean over the query's
    tokens of their best cosine with a document's token, in -1..1). `max_tokens` is where query and document together
    are cut; with `late_interaction`, each of them. `template` holds {query} and {document}. `first_stage_weight` >= 0
    is how much the order before reranking counts beside the reranker's own (reciprocal ranks; 0: not at all).
    """

    id: str
    kind: str
    model: str
    revision: str = ""
    max_tokens: int = 512
    dtype: str = "auto"
    template: str = ""
    first_stage_weight: float = 0.0

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RerankerRecord:
        """Read a record from JSON values; raises RerankerError on unknown or missing keys and unusable values."""
        refuse_unfit(cls, values, {"id", "kind", "model"}, "Reranker record", RerankerError)
        return cls(**values)

    def __post_init__(self) -> None:
        what = f"Reranker record '{self.id}'"
        if self.kind not in KINDS:
            raise RerankerError(f"{what}: kind '{self.kind}' is not one of {KINDS}.")
        if self.dtype not in DTYPES:
            raise RerankerError(f"{what}: dtype '{self.dtype}' is not one of {DTYPES}.")
        if self.max_tokens < 8:
            raise RerankerError(f"{what}: max_tokens {self.max_tokens} leaves no room for query and document.")
        if not 0 <= self.first_stage_weight < float("inf"):
            raise RerankerError(f"{what}: first_stage_weight {self.first_stage_weight} is not a number >= 0.")
        if self.kind == "yes_no":
            if [self.template.count(key) for key in TEMPLATE_KEYS] != [1, 1]:
                raise RerankerError(f"{what}: its template does not hold {{query}} and {{document}} once each.")
            if self.template.index("{query}") > self.template.index("{document}"):
                raise RerankerError(f"{what}: its template names {{document}} before {{query}}; put the query first.")

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON values."""
        return asdict(self)


class Reranker(Protocol):
    """Scores documents for a query; higher is better, and only scores of one reranker compare."""

    @property
    def record(self) -> RerankerRecord:
        """The declaration of this reranker."""

    def score(self, query: str, contents: Sequence[str]) -> Scores:
        """Return one float32 score for each of `contents`."""

    def score_many(self, requests: Sequence[Request]) -> list[Scores]:
        """Return the scores of each (query, contents); a query is scored with its own contents only.

        A blank query or document is scored as the empty text it is; an overlong one is cut at the record's length.
        """
