"""The index on a Ray cluster: replicas of a whole index, or one deployment a shard, behind the same HTTP front.

Needs `pip install 'verl-agentic[ray]'`; nothing else of the retriever server imports ray.
"""

from retriever_server.ray_engine.opening import open_ray_backend

__all__ = ["open_ray_backend"]
