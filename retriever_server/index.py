"""Building and opening an index folder: manifest, passages, and a BM25 model, passage vectors, or both."""

from retriever_server.building.build import BuildOptions, build_index
from retriever_server.opening import OpenOptions, open_index, open_shard

__all__ = ["BuildOptions", "OpenOptions", "build_index", "open_index", "open_shard"]
