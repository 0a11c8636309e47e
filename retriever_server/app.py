"""The HTTP face of a backend: a Flask application whose every answer, errors included, is JSON."""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException

from retriever_server import adapters, models
from retriever_server.backends.base import Backend
from retriever_server.errors import (
    DeadlinePassed,
    NotOffered,
    Overloaded,
    RequestError,
    RetrieverServerError,
    SearchError,
    Unavailable,
)
from retriever_server.manifest import Manifest
from retriever_server.openapi import describe
from retriever_server.schema import Limits
from retriever_server.service import Service
from retriever_server.settings import ServerSettings

__all__ = ["ServerSettings", "app_of", "create_app", "service_of"]

REQUEST_ID = "X-Request-Id"
DEADLINE = "X-Deadline-Ms"
CACHE_HITS = "X-Cache-Hits"
LONGEST_DEADLINE_MS = 3_600_000
STATUSES: dict[type[RetrieverServerError], int] = {
    RequestError: 400,
    NotOffered: 404,
    SearchError: 422,
    Overloaded: 429,
    Unavailable: 503,
    DeadlinePassed: 503,
}
TOO_LARGE = "The body is larger than this server accepts; send fewer queries at a time."
SENTENCES = {404: "There is no such route; /openapi.json describes those that there are.", 413: TOO_LARGE}
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("retriever_server")
Parse = Callable[[Any, Limits], adapters.Wanted]
Render = Callable[[adapters.Wanted, adapters.Hits], Any]


def create_app(backend: Backend, settings: ServerSettings | None = None, manifest: Manifest | None = None) -> Flask:
    """Return the WSGI application that serves `backend`, ready at once; see app_of for its routes."""
    service = Service(settings or ServerSettings())
    service.install(backend, manifest)
    return app_of(service)


def app_of(service: Service) -> Flask:
    """Return the WSGI application of `service`, which may have no index open yet.

    POST /retrieve, /queries, /search, /embed and /rerank (see schema and adapters); GET /health (alive), /ready (able
    to search), /info (what is served), /metrics (Prometheus) and /openapi.json (all of this for machines).
    """
    app = Flask("retriever_server", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = service.settings.max_body_bytes
    app.json.sort_keys = False  # type: ignore[attr-defined]
    app.json.compact = True  # type: ignore[attr-defined]
    app.extensions["retriever_server"] = service
    app.before_request(_begin_request)
    app.after_request(_end_request(service))
    _add_error_handlers(app, service)
    _add_search_routes(app, service)
    _add_model_routes(app, service)
    _add_status_routes(app, service)
    return app


def service_of(app: Flask) -> Service:
    """Return what `app` serves."""
    service: Service = app.extensions["retriever_server"]
    return service


def _add_search_routes(app: Flask, service: Service) -> None:
    wires: dict[str, tuple[Parse, Render]] = {
        "retrieve": (adapters.parse_retrieve, adapters.render_retrieve),
        "queries": (adapters.parse_queries, adapters.render_queries),
        "search": (adapters.parse_questions, adapters.render_questions),
    }
    for name, (parse, render) in wires.items():
        app.add_url_rule(f"/{name}", name, _search_view(service, parse, render), methods=["POST"])


def _search_view(service: Service, parse: Parse, render: Render) -> Callable[[], Response]:
    def search() -> Response:
        _require_ready(service)
        wanted = parse(_json_body(), service.settings.limits)
        g.queries = len(wanted.queries)
        answer = service.engine.search(wanted.queries, wanted.topk, _deadline_s())
        g.cache_hits = answer.cache_hits
        response = jsonify(render(wanted, answer.hits))
        response.headers[CACHE_HITS] = str(answer.cache_hits)
        return response

    return search


def _add_model_routes(app: Flask, service: Service) -> None:
    def embed() -> Response:
        _require_ready(service)
        return jsonify(
            models.embed(service, adapters.parse_embed(_json_body(), service.settings.limits), _deadline_s())
        )

    def rerank() -> Response:
        _require_ready(service)
        wanted = adapters.parse_rerank(_json_body(), service.settings.limits)
        return jsonify(models.rerank(service, wanted, _deadline_s()))

    app.add_url_rule("/embed", view_func=embed, methods=["POST"])
    app.add_url_rule("/rerank", view_func=rerank, methods=["POST"])


def _add_status_routes(app: Flask, service: Service) -> None:
    def ready() -> Response:
        _require_ready(service)
        return jsonify(status="ready", count=service.info["count"])

    def info() -> Response:
        _require_open(service)
        return jsonify(service.info)

    document = describe(service.settings.limits)
    app.add_url_rule("/health", "health", lambda: jsonify(status="ok"))
    app.add_url_rule("/ready", view_func=ready)
    app.add_url_rule("/info", view_func=info)
    app.add_url_rule(
        "/metrics", "metrics", lambda: Response(service.metrics.render(), mimetype="text/plain; version=0.0.4")
    )
    app.add_url_rule("/openapi.json", "openapi", lambda: jsonify(document))


def _require_ready(service: Service) -> None:
    if service.unready:
        raise Unavailable(service.unready)


def _require_open(service: Service) -> None:
    if service.backend is None:
        raise Unavailable(service.unready or "")


def _deadline_s() -> float | None:
    given = request.headers.get(DEADLINE)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and 1 <= int(given[:10]) <= LONGEST_DEADLINE_MS and len(given) <= 10):
        raise RequestError(f"The header {DEADLINE} must be a whole number from 1 to {LONGEST_DEADLINE_MS}.")
    return int(given) / 1000


def _json_body() -> Any:
    try:
        return json.loads(request.get_data(cache=False).decode("utf-8"), object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise RequestError("The body is not UTF-8.") from error
    except RecursionError as error:
        raise RequestError("The body is nested too deeply.") from error
    except json.JSONDecodeError as error:
        raise RequestError(f"The body is not JSON: {str(error).splitlines()[0]}.") from error
    except ValueError as error:  # of int()
        raise RequestError("The body holds a whole number of thousands of digits.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise RequestError("The body has an object that gives one key twice.")
    return found


def _begin_request() -> None:
    g.started = time.perf_counter()
    given = request.headers.get(REQUEST_ID, "")
    g.request_id = given if _PLAIN_ID.fullmatch(given) else uuid.uuid4().hex


def _end_request(service: Service) -> Callable[[Response], Response]:
    def end(response: Response) -> Response:
        seconds = time.perf_counter() - g.started
        route = request.url_rule.rule if request.url_rule else "none"
        response.headers[REQUEST_ID] = g.request_id
        service.metrics.requests.labels(route, response.status_code).inc()
        service.metrics.request_seconds.labels(route).observe(seconds)
        if _log.isEnabledFor(logging.INFO):
            _log.info("request", extra={"fields": _log_fields(route, response, seconds)})
        return response

    return end


def _log_fields(route: str, response: Response, seconds: float) -> dict[str, Any]:
    return {
        "request": g.request_id,
        "method": request.method,
        "route": route,
        "status": response.status_code,
        "ms": round(1000 * seconds, 2),
        "queries": g.get("queries", 0),
        "cache_hits": g.get("cache_hits", 0),
    }


def _add_error_handlers(app: Flask, service: Service) -> None:
    def known(error: RetrieverServerError) -> Response:
        status = next((code for kind, code in STATUSES.items() if isinstance(error, kind)), None)
        if status is None:
            return _unexpected(error)
        response = _error(status, str(error))
        if status in (429, 503):
            response.headers["Retry-After"] = str(service.settings.retry_after_s)
        return response

    app.register_error_handler(RetrieverServerError, known)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)


def _http_error(error: HTTPException) -> Response:
    code = error.code or 500
    response = _error(code, SENTENCES.get(code, error.description or error.name))
    allowed = dict(error.get_headers()).get("Allow")
    if allowed:
        response.headers["Allow"] = allowed
    return response


def _unexpected(error: Exception) -> Response:
    _log.error("request %s failed", g.request_id, exc_info=error)
    return _error(500, f"The search failed ({type(error).__name__}); the server's log has request {g.request_id}.")


def _error(status: int, sentence: str) -> Response:
    response = jsonify(error=sentence)
    response.status_code = status
    return response
