"""The life of a server: an index being opened, served, replaced, and the drain at the end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from retriever_server.backends.base import Backend
from retriever_server.canaries import held_canaries
from retriever_server.engine import Engine
from retriever_server.errors import RetrieverServerError
from retriever_server.manifest import Manifest
from retriever_server.metrics import Metrics
from retriever_server.settings import ServerSettings

Opener = Callable[[], tuple[Backend, Manifest]]
SHOWN_CANARIES = 8
SPARE_THREADS = 8  # beyond the requests that may wait: these refuse the rest at once and answer /health
_log = logging.getLogger("retriever_server")


class Service:
    """What the routes of one application share; `opener` opens the index that is served, first and at each reload."""

    def __init__(self, settings: ServerSettings, opener: Opener | None = None) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.engine = Engine(settings, self.metrics)
        self.backend: Backend | None = None
        self.draining = False
        self._opener = opener
        self._opening, self._next_reload = threading.Lock(), threading.Lock()
        self._began = time.monotonic()
        self._info: dict[str, Any] = {}
        self.metrics.watch("ready", "1 when an index is served.", lambda: self.unready is None)

    @property
    def http_threads(self) -> int:
        """How many threads answer HTTP requests."""
        return self.settings.max_pending + SPARE_THREADS

    @property
    def unready(self) -> str | None:
        """Why no search can be answered now, in one sentence; None when one can."""
        if self.draining:
            return "This server is stopping; ask another one, or try again when it is back."
        if self.backend is None:
            return f"The index is being opened ({time.monotonic() - self._began:.0f} s so far); try again in a moment."
        return None

    @property
    def info(self) -> dict[str, Any]:
        """What is served and how, as JSON values."""
        return self._info

    def install(self, backend: Backend, manifest: Manifest | None = None) -> None:
        """Serve `backend` from now on, in place of the one before."""
        canaries = _shown_canaries(backend, manifest)
        generation = self.engine.install(backend)
        self._info = {**self._describe(backend, manifest, generation), "canaries": canaries}
        self.backend = backend  # last: from here on the server is ready, and all its routes must be
        _warn_of_few(canaries, manifest)
        self.metrics.generation.set(generation)
        self.metrics.passages.set(len(backend.passages))

    def open(self) -> Manifest:
        """Open the index and serve it; raises what the opener raises, IndexRefused first of all."""
        with self._opening:
            return self._open()

    def _open(self) -> Manifest:
        if self._opener is None:
            raise RetrieverServerError("This server has no index folder to open; it serves what it was given.")
        try:
            backend, manifest = self._opener()
        except RetrieverServerError:
            self.metrics.canary_checks.labels("failed").inc()
            raise
        self.metrics.canary_checks.labels("held").inc()
        self.install(backend, manifest)
        return manifest

    def reload(self) -> None:
        """Open the index again and serve it; one that is refused, or fails, is logged and the present one stays.

        Of several calls that wait for the one under way, the first opens what all of them ask for.
        """
        if not self._next_reload.acquire(blocking=False):
            return
        with self._opening:
            self._next_reload.release()
            if not self.draining:
                self._reload()

    def _reload(self) -> None:
        try:
            manifest = self._open()
        except Exception as error:
            self.metrics.reloads.labels("refused").inc()
            unexpected = None if isinstance(error, RetrieverServerError) else error
            _log.error("reload refused, the index before is still served: %s", error, exc_info=unexpected)
            return
        self.metrics.reloads.labels("done").inc()
        _log.info("reloaded", extra={"fields": {"passages": manifest.count, "generation": self._info["generation"]}})

    def _describe(self, backend: Backend, manifest: Manifest | None, generation: int) -> dict[str, Any]:
        settings, encoder, reranker = self.settings, backend.encoder, backend.reranker
        return {
            "kind": backend.kind,
            "settings": backend.settings(),
            "count": len(backend.passages),
            "encoder": encoder.record.to_dict() if encoder else None,
            "reranker": reranker.record.id if reranker else None,
            "limits": vars(settings.limits),
            "threads": {
                "http": self.http_threads,
                "executors": self.engine.executors,
                "search": settings.threads,
            },
            "engine": {
                name: getattr(settings, name)
                for name in ("max_batch", "window_ms", "cache_mb", "max_pending", "max_queued", "deadline_s")
            },
            "generation": generation,
            **_describe_manifest(manifest),
        }


def _shown_canaries(backend: Backend, manifest: Manifest | None) -> list[dict[str, str]]:
    """Return the canaries by which a client may check what is served.

    All hold in each part of the index; where parts are fused or hits reranked, another passage may well come first.
    """
    canaries = manifest.canaries[:SHOWN_CANARIES] if manifest else []
    held = held_canaries(backend, canaries) if canaries else []
    return [{"query": each.query, "id": each.id} for each, holds in zip(canaries, held, strict=True) if holds]


def _warn_of_few(shown: list[dict[str, str]], manifest: Manifest | None) -> None:
    known = len(manifest.canaries[:SHOWN_CANARIES]) if manifest else 0
    if len(shown) < known / 2:
        _log.warning(
            "only %d of %d passages come first by their own first words once fused and reranked, though all do in each "
            "part; check the reranker and the fusion weights",
            len(shown),
            known,
        )


def _describe_manifest(manifest: Manifest | None) -> dict[str, Any]:
    return {
        "parts": [{"kind": part.kind, **part.vectors} for part in manifest.parts] if manifest else [],
        "corpus_sha256": manifest.corpus_sha256 if manifest else None,
        "versions": manifest.versions if manifest else None,
    }
