"""The one place where searches run: admission, micro-batches, the result cache, deadlines."""

from retriever_server.engine.engine import Answer, Engine

__all__ = ["Answer", "Engine"]
