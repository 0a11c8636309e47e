"""Opening an index on a Ray cluster as one backend of this process."""

from __future__ import annotations

import atexit
import threading
import weakref
from dataclasses import replace
from pathlib import Path

from retriever_server.backends.base import Backend
from retriever_server.index import OpenOptions, open_index
from retriever_server.manifest import Manifest, read_manifest
from retriever_server.passages import PassageStore
from retriever_server.ray_engine.backend import RemoteIndex, RemoteVectors
from retriever_server.ray_engine.cluster import connect, disconnect
from retriever_server.ray_engine.deployments import Target, deploy, remove
from retriever_server.ray_engine.replicas import IndexReplica, ShardReplica, identity
from retriever_server.vectors.record import VectorRecord

_open: list[list[str]] = []  # the names of deployments that this process has opened


def open_ray_backend(folder: Path, options: OpenOptions | None = None, replicas: int = 1) -> tuple[Backend, Manifest]:
    """Open the index in `folder` on a Ray cluster and return a backend that answers as `open_index`'s would.

    An index whose vectors are one file runs as `replicas` >= 1 copies of it all, and `replicas` batches run at once. An
    index that was built with shards runs as one deployment a shard, `replicas` of each: this process opens everything
    but the vectors, encodes the queries, asks all shards and merges. Every node needs `folder` under the same path. The
    deployments go when the backend is garbage or the process ends, and with them a cluster that was started here.

    Raises as `open_index` does, and RetrieverServerError when no cluster can be used.
    """
    folder, options = folder.absolute(), options or OpenOptions()
    manifest = read_manifest(folder)
    shards = _shards(manifest, options)
    cpus = max(1, options.threads)
    connect(cpus * replicas * shards)
    if shards > 1:
        return _open_shards(folder, options, replicas, shards, cpus)
    return _open_replicas(folder, options, replicas, cpus), manifest


def _shards(manifest: Manifest, options: OpenOptions) -> int:
    dense = [part for part in manifest.parts if part.kind == "dense" and options.use in ("", "dense")]
    return VectorRecord.from_dict(dense[0].vectors).shards if dense else 1


def _open_replicas(folder: Path, options: OpenOptions, replicas: int, cpus: int) -> Backend:
    gpus = int(options.device == "cuda")
    target = Target(IndexReplica, (str(folder), options, identity(folder)), replicas, cpus, gpus)
    passages = PassageStore(folder)
    (deployment,), names = deploy([target])
    backend = RemoteIndex(deployment, passages, replicas)
    _close_with(backend, names)
    return backend


def _open_shards(folder: Path, options: OpenOptions, replicas: int, shards: int, cpus: int) -> tuple[Backend, Manifest]:
    # the shards compute on the CPU; the device is for the encoder, which is here
    own, expected = replace(options, device="cpu"), identity(folder)
    targets = [Target(ShardReplica, (str(folder), number, own, expected), replicas, cpus) for number in range(shards)]
    deployments, names = deploy(targets)
    vectors = RemoteVectors(deployments)
    _close_with(vectors, names)
    return open_index(folder, options, vectors)


def _close_with(owner: object, names: list[str]) -> None:
    """Delete deployments once `owner` is garbage (after a reload: when its last search has ended), or at exit."""
    if not _open:
        atexit.register(_close_all)  # after Ray registered its own end, so that it runs before that
    _open.append(names)
    weakref.finalize(owner, _close_later, names).atexit = False


def _close_later(names: list[str]) -> None:
    # deleting takes seconds, and this runs in whatever thread held the owner last
    threading.Thread(target=_close, args=(names,), name="ray-close").start()


def _close(names: list[str]) -> None:
    remove(names)
    _open.remove(names)
    if not _open:
        disconnect()


def _close_all() -> None:
    for names in list(_open):
        _close(names)
