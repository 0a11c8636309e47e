"""`serve`: an index folder over HTTP."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from retriever_server import logs
from retriever_server.app import app_of
from retriever_server.backends.base import Backend
from retriever_server.commands import serve_options
from retriever_server.errors import RetrieverServerError
from retriever_server.manifest import Manifest
from retriever_server.service import Opener, Service
from retriever_server.serving import claim_port, url_of
from retriever_server.serving import serve as serve_app

if TYPE_CHECKING:
    from retriever_server.index import OpenOptions

_log = logging.getLogger("retriever_server")

add_arguments = serve_options.add_arguments


def run(options: argparse.Namespace) -> int:
    """Serve until told to stop; returns 0."""
    serve_options.refuse_nonsense(options)
    logs.log_as_json(options.log_level)
    claimed = claim_port(options.host, options.port)
    _warn_of_strangers(options.host)
    settings = serve_options.server_settings(options)
    os.environ["OMP_NUM_THREADS"] = str(settings.threads)  # read when faiss or torch is imported, below
    service = Service(settings, _opener(options))
    serve_app(app_of(service), claimed, settings, partial(_begin, service, options, claimed))
    return 0


def _begin(service: Service, options: argparse.Namespace, claimed: socket.socket) -> str:
    _progress("opening", index=str(options.index), url=url_of(claimed), engine=options.engine)
    manifest = service.open()
    threads = service.info["threads"]
    _progress("ready", passages=manifest.count, encoder=manifest.encoder, threads=threads)
    return f"retriever ready url={url_of(claimed)} docs={manifest.count} encoder={manifest.encoder}"


def _opener(options: argparse.Namespace) -> Opener:
    folder = Path(os.path.abspath(options.index))
    if options.engine == "ray":
        return partial(_open_on_ray, folder, serve_options.open_options(options), options.replicas or 1)
    return partial(_open_here, folder, serve_options.open_options(options))


def _open_here(folder: Path, options: OpenOptions) -> tuple[Backend, Manifest]:
    from retriever_server.index import open_index

    return open_index(folder, options)


def _open_on_ray(folder: Path, options: OpenOptions, replicas: int) -> tuple[Backend, Manifest]:
    try:
        from retriever_server.ray_engine import open_ray_backend
    except ModuleNotFoundError as error:
        raise RetrieverServerError(
            f"`--engine ray` needs the package '{error.name}'; run `pip install 'verl-agentic[ray]'`."
        ) from error
    return open_ray_backend(folder, options, replicas)


def _progress(message: str, **fields: object) -> None:
    _log.info(message, extra={"fields": fields})


def _warn_of_strangers(host: str) -> None:
    if not _is_loopback(host):
        print(
            f"retriever: warning: {host} is not this machine alone; whoever reaches the port can search, for there is "
            "no password and no encryption.",
            file=sys.stderr,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
