"""Text encoders, each a declared record that the index keeps, so that queries are encoded as the passages were."""

from retriever_server.encoders.catalogue import RECORDS
from retriever_server.encoders.opening import encode_passages, encode_queries, find_record, open_encoder
from retriever_server.encoders.record import Encoder, EncoderRecord, Vectors

__all__ = [
    "RECORDS",
    "Encoder",
    "EncoderRecord",
    "Vectors",
    "encode_passages",
    "encode_queries",
    "find_record",
    "open_encoder",
]
