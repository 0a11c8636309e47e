"""Rerankers, each a declared record: they put the candidates of a first stage in order again."""

from retriever_server.rerankers.catalogue import RERANKERS
from retriever_server.rerankers.opening import find_reranker, open_reranker
from retriever_server.rerankers.record import Reranker, RerankerRecord

__all__ = ["RERANKERS", "Reranker", "RerankerRecord", "find_reranker", "open_reranker"]
