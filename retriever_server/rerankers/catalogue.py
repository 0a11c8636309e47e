"""The rerankers that are known by name, as their model cards declare them."""

from __future__ import annotations

from retriever_server.rerankers.record import RerankerRecord

QWEN_TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n"
    "<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def _cross_encoder(hub_id: str) -> RerankerRecord:
    return RerankerRecord(hub_id.rsplit("/", 1)[-1], "cross_encoder", hub_id)


RERANKERS: dict[str, RerankerRecord] = {
    record.id: record
    for record in (
        _cross_encoder("cross-encoder/ms-marco-MiniLM-L6-v2"),
        _cross_encoder("cross-encoder/ms-marco-MiniLM-L12-v2"),
        _cross_encoder("BAAI/bge-reranker-base"),
        _cross_encoder("BAAI/bge-reranker-large"),
        _cross_encoder("BAAI/bge-reranker-v2-m3"),
        RerankerRecord(
            "Qwen3-Reranker-0.6B", "yes_no", "Qwen/Qwen3-Reranker-0.6B", max_tokens=8192, template=QWEN_TEMPLATE
        ),
        RerankerRecord(
            "late-interaction", "late_interaction", "all-MiniLM-L6-v2", max_tokens=256, first_stage_weight=1.0
        ),
    )
}
