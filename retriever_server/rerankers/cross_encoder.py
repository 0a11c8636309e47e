"""Cross-encoders (MS MARCO MiniLM, BGE reranker): a sequence classifier that reads query and document together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from retriever_server.checkpoints import Source, batches, load, require_positions, tokenize
from retriever_server.errors import RerankerError
from retriever_server.rerankers.pairs import PairReranker
from retriever_server.rerankers.record import RerankerRecord, Scores


class CrossEncoder(PairReranker):
    """A classifier with one output, whose score is the raw logit; the longer of a pair's texts is cut first."""

    def __init__(self, record: RerankerRecord, device: str = "cpu", threads: int = 0) -> None:
        self.record = record
        what = f"Reranker '{record.id}'"
        source = Source(what, record.model, record.revision, record.dtype, device, threads, RerankerError)
        self._checkpoint = load(source, "AutoModelForSequenceClassification")
        labels = self._checkpoint.model.config.num_labels
        if labels != 1:
            raise RerankerError(f"{what} has {labels} outputs; a cross-encoder for ranking has one.")
        require_positions(self._checkpoint, record.max_tokens, source)

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """See PairReranker.score_pairs. Pairs are batched by length, which changes no score beyond rounding."""
        texts = {text: self._shortened(text) for pair in pairs for text in pair}
        tokenized = tokenize(
            self._checkpoint.tokenizer,
            [texts[query] for query, _ in pairs],
            [texts[document] for _, document in pairs],
            truncation="longest_first",
            max_length=self.record.max_tokens,
            return_token_type_ids=True,
        )
        ids, types = tokenized["input_ids"], tokenized["token_type_ids"]
        scores = np.empty(len(pairs), dtype=np.float32)
        for rows in batches([len(line) for line in ids]):
            scores[rows] = self._logits([ids[row] for row in rows], [types[row] for row in rows])
        return scores

    def _shortened(self, text: str) -> str:
        """Drop what lies far beyond the cut: truncating a pair of two very long texts takes quadratic time."""
        limit = 2 * self.record.max_tokens
        if len(text) <= limit:
            return text
        options = {"return_offsets_mapping": True, "add_special_tokens": False, "truncation": True, "max_length": limit}
        offsets = tokenize(self._checkpoint.tokenizer, text, **options)["offset_mapping"]
        return text[: offsets[-1][1]] if offsets else ""

    @torch.inference_mode()
    def _logits(self, ids: list[list[int]], types: list[list[int]]) -> Scores:
        batch = self._checkpoint.tensors(ids)
        if "token_type_ids" in self._checkpoint.tokenizer.model_input_names:
            batch["token_type_ids"] = self._checkpoint.fill(types)
        logits: Scores = self._checkpoint.model(**batch).logits[:, 0].float().cpu().numpy()
        return logits
