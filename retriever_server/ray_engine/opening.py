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
from retriever_server.opening import open_passages
from retriever_server.ray_engine.backend import RemoteIndex, RemoteVectors
from retriever_server.ray_engine.cluster import connect, disconnect
from retriever_server.ray_engine.deployments import Deployment, Target, deploy, remove
from retriever_server.ray_engine.replicas import IndexReplica, ShardReplica, identity
from retriever_server.vectors.record import VectorRecord

_open: list[str] = []  # the names of deployments that this process has opened


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
    return _open_replicas(folder, manifest, options, replicas, cpus), manifest


def _shards(manifest: Manifest, options: OpenOptions) -> int:
    dense = [part for part in manifest.parts if part.kind == "dense" and options.use in ("", "dense")]
    return VectorRecord.from_dict(dense[0].vectors).shards if dense else 1


def _open_replicas(folder: Path, manifest: Manifest, options: OpenOptions, replicas: int, cpus: int) -> Backend:
    gpus = int(options.device == "cuda")
    target = Target(IndexReplica, (str(folder), options, identity(folder)), replicas, cpus, gpus)
    passages = open_passages(folder, manifest)
    (deployment,) = _deploy([target])
    return RemoteIndex(deployment, passages, replicas)


def _open_shards(folder: Path, options: OpenOptions, replicas: int, shards: int, cpus: int) -> tuple[Backend, Manifest]:
    # the shards compute on the CPU; the device is for the encoder, which is here
    own, expected = replace(options, device="cpu"), identity(folder)
    targets = [Target(ShardReplica, (str(folder), number, own, expected), replicas, cpus) for number in range(shards)]
    return open_index(folder, options, RemoteVectors(_deploy(targets)))


def _deploy(targets: list[Target]) -> list[Deployment]:
    """Start deployments; each is deleted once nothing here refers to it (after a reload, the last search), or at exit.

    Referring to them are the backend and what it is made of.
    """
    deployments = deploy(targets)
    if not _open:
        atexit.register(_close_all)  # after Ray registered its own end, so that it runs before that
    for deployment in deployments:
        _open.append(deployment.name)
        weakref.finalize(deployment, _close_later, deployment.name).atexit = False
    return deployments


def _close_later(name: str) -> None:
    # deleting takes seconds, and this runs in whatever thread held the deployment last
    threading.Thread(target=_close, args=(name,), name="ray-close").start()


def _close(name: str) -> None:
    remove(name)
    _open.remove(name)
    if not _open:
        disconnect()


def _close_all() -> None:
    if _open and not disconnect():
        for name in list(_open):
            _close(name)
