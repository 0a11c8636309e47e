"""Language models as rerankers (Qwen3-Reranker): is the document what the query needs, yes or no?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from retriever_server.checkpoints import Source, batches, load, require_positions, tokenize
from retriever_server.errors import RerankerError
from retriever_server.rerankers.pairs import PairReranker
from retriever_server.rerankers.record import RerankerRecord, Scores


class YesNoReranker(PairReranker):
    """A causal language model; the score is the probability of `yes` against `no` after the record's template.

    Where a prompt is too long, its document is cut at the end, then its query; the template's own words always stand.
    """

    def __init__(self, record: RerankerRecord, device: str = "cpu", threads: int = 0) -> None:
        self.record = record
        what = f"Reranker '{record.id}'"
        source = Source(what, record.model, record.revision, record.dtype, device, threads, RerankerError)
        self._checkpoint = load(source, "AutoModelForCausalLM")
        require_positions(self._checkpoint, record.max_tokens, source)
        before, rest = record.template.split("{query}")
        between, after = rest.split("{document}")
        self._before, self._between, self._after = (self._ids(text) for text in (before, between, after))
        self._answers = [self._answer(word) for word in ("no", "yes")]
        self._room = record.max_tokens - sum(map(len, (self._before, self._between, self._after)))
        if self._room < 2:
            raise RerankerError(f"{what}: max_tokens {record.max_tokens} leaves its template no room for a text.")

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> Scores:
        """See PairReranker.score_pairs."""
        prompts = [self._prompt(query, document) for query, document in pairs]
        scores = np.empty(len(pairs), dtype=np.float32)
        for rows in batches([len(prompt) for prompt in prompts]):
            scores[rows] = self._yes([prompts[row] for row in rows])
        return scores

    @torch.inference_mode()
    def _yes(self, prompts: list[list[int]]) -> Scores:
        batch = self._checkpoint.tensors(prompts)
        model = self._checkpoint.model
        states = model.base_model(**batch).last_hidden_state
        # the vocabulary's logits at the last token only; all positions of a batch would be gigabytes
        last = states[range(len(prompts)), batch["attention_mask"].sum(1) - 1]
        logits = model.get_output_embeddings()(last)[:, self._answers].float()
        yes: Scores = torch.softmax(logits, dim=1)[:, 1].cpu().numpy()
        return yes

    def _prompt(self, query: str, document: str) -> list[int]:
        asked = self._ids(query)[: self._room]
        told = self._ids(document)[: self._room - len(asked)]
        return [*self._before, *asked, *self._between, *told, *self._after]

    def _ids(self, text: str) -> list[int]:
        if not text:
            return []
        ids: list[int] = tokenize(self._checkpoint.tokenizer, text, add_special_tokens=False)["input_ids"]
        return ids

    def _answer(self, word: str) -> int:
        tokenizer = self._checkpoint.tokenizer
        token = tokenizer.convert_tokens_to_ids(word)
        if token is None or token == tokenizer.unk_token_id:
            raise RerankerError(f"Reranker '{self.record.id}': its tokenizer has no single token '{word}'.")
        return int(token)
