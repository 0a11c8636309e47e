"""The HTTP face of a backend: a Flask application whose every answer, errors included, is JSON."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from flask import Flask, Response, g, jsonify, request
from werkzeug.exceptions import HTTPException

from retriever_server.backends.base import Backend, Hit
from retriever_server.errors import Overloaded, RequestError, SearchError
from retriever_server.executor import SearchExecutor
from retriever_server.schema import Document, Limits, parse_request, render_response

REQUEST_ID = "X-Request-Id"
_PLAIN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_log = logging.getLogger("retriever_server")


@dataclass(frozen=True)
class ServerSettings:
    """`max_body_bytes` caps a body, `max_pending` the searches under way; refused ones are told `retry_after_s`."""

    limits: Limits = field(default_factory=Limits)
    max_body_bytes: int = 8 * 2**20
    max_pending: int = 256
    retry_after_s: int = 1


def create_app(backend: Backend, settings: ServerSettings | None = None) -> Flask:
    """Return the WSGI application that serves `backend`.

    POST /retrieve (see schema), GET /health (alive), GET /ready (able to search), GET /info (what is served).
    """
    settings = settings or ServerSettings()
    app = Flask("retriever_server")
    app.config["MAX_CONTENT_LENGTH"] = settings.max_body_bytes
    executor = SearchExecutor(backend, settings.max_pending)
    app.before_request(_name_request)
    app.after_request(_label_response)
    _add_error_handlers(app, settings)
    app.add_url_rule("/retrieve", view_func=_retrieve_view(executor, settings.limits), methods=["POST"])
    _add_status_routes(app, backend, settings)
    return app


def _retrieve_view(executor: SearchExecutor, limits: Limits) -> Callable[[], Response]:
    def retrieve() -> Response:
        wanted = parse_request(_json_body(), limits)
        results = executor.search(wanted.queries, wanted.topk)
        documents = [[_document(hit) for hit in hits] for hits in results]
        return jsonify(render_response(documents, wanted.return_scores))

    return retrieve


def _add_status_routes(app: Flask, backend: Backend, settings: ServerSettings) -> None:
    info = {
        "kind": backend.kind,
        "settings": backend.settings(),
        "count": len(backend.passages),
        "limits": asdict(settings.limits),
    }
    app.add_url_rule("/health", "health", lambda: jsonify(status="ok"))
    # the application exists only once its index is open and checked
    app.add_url_rule("/ready", "ready", lambda: jsonify(status="ready", count=info["count"]))
    app.add_url_rule("/info", "info", lambda: jsonify(info))


def _json_body() -> Any:
    try:
        return json.loads(request.get_data(cache=False).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError("The body is not UTF-8.") from error
    except RecursionError as error:
        raise RequestError("The body is nested too deeply.") from error
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {str(error).splitlines()[0]}.") from error


def _document(hit: Hit) -> Document:
    return Document(hit.id, hit.contents, hit.score)


def _name_request() -> None:
    given = request.headers.get(REQUEST_ID, "")
    g.request_id = given if _PLAIN_ID.fullmatch(given) else uuid.uuid4().hex


def _label_response(response: Response) -> Response:
    response.headers[REQUEST_ID] = g.request_id
    return response


def _add_error_handlers(app: Flask, settings: ServerSettings) -> None:
    def overloaded(error: Overloaded) -> Response:
        response = _error(503, str(error))
        response.headers["Retry-After"] = str(settings.retry_after_s)
        return response

    app.register_error_handler(RequestError, lambda error: _error(400, str(error)))
    app.register_error_handler(SearchError, lambda error: _error(422, str(error)))
    app.register_error_handler(Overloaded, overloaded)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unexpected)


def _http_error(error: HTTPException) -> Response:
    sentences = {413: "The body is larger than this server accepts; send fewer queries at a time."}
    response = _error(error.code or 500, sentences.get(error.code or 500, error.description or error.name))
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
