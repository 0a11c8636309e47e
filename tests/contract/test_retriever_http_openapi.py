"""The OpenAPI document against the application, its real answers, and requests that Schemathesis makes of it."""

import json

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from retriever_server.app import create_app
from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage
from retriever_server.index import build_index
from retriever_server.openapi import describe
from retriever_server.process import start_server
from retriever_server.schema import Limits

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
BODIES = {
    "/retrieve": [
        {"queries": ["river", ""], "topk": 2, "return_scores": True},
        {"query": "river"},
        {"query": "x" * 70_000},
        [],
    ],
    "/queries": [{"queries": ["river", ""], "k": 2}, {"queries": "river"}],
    "/search": [{"questions": ["river", ""], "N": None}, {"questions": []}],
    "/embed": [{"texts": ["river", ""], "kind": "passage"}, {"texts": ["river"], "kind": "x"}],
    "/rerank": [{"query": "river", "documents": ["a"]}, {"query": "river"}],
}
BAD_VALUES = [None, 0, -1, "3", 10**9, True, [], {}, ["x", 3], "x" * 70_000]


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    rows = [{"id": "a", "contents": "Avar lies on the river Belm."}, {"id": "b", "contents": "Dune is a hill."}]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    build_index(folder / "corpus.jsonl", "hashing", folder / "index")
    with start_server(folder / "index") as server:
        yield server.url


@pytest.fixture(scope="module")
def http():
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def document(http, url) -> dict:
    return http.get(f"{url}/openapi.json").json()


def test_the_document_names_exactly_the_routes_of_the_application():
    app = create_app(BM25Backend.from_passages([Passage("a", "red fox")]))
    served = {
        (rule.rule, method.lower())
        for rule in app.url_map.iter_rules()
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    described = {(path, method) for path, item in describe(Limits())["paths"].items() for method in item}
    assert described == served
    assert len(served) == 10


def resolved(document: dict, schema: dict) -> dict:
    """The schema with what it refers to, in the words of JSON Schema, which has no `nullable`."""

    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        if not isinstance(value, dict):
            return value
        inner = {key: plain(item) for key, item in value.items() if key != "nullable"}
        return {"anyOf": [inner, {"type": "null"}]} if value.get("nullable") else inner

    return plain({**schema, "components": document["components"]})


def check_answer(document: dict, path: str, method: str, answer: httpx.Response) -> None:
    described = document["paths"][path][method]["responses"][str(answer.status_code)]
    kind = answer.headers["Content-Type"].split(";")[0]
    schema = described["content"][kind]["schema"]
    value = answer.json() if kind == "application/json" else answer.text
    jsonschema.validate(value, resolved(document, schema))
    assert set(described["headers"]) - {"X-Cache-Hits"} <= set(map(str.title, answer.headers))


@pytest.mark.parametrize("path", ["/health", "/ready", "/info", "/metrics", "/openapi.json"])
def test_status_pages_answer_as_described(http, url, document, path):
    answer = http.get(url + path)
    assert answer.status_code == 200
    check_answer(document, path, "get", answer)


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, bodies in BODIES.items() for body in bodies])
def test_searches_answer_as_described_and_good_requests_fit_the_schema(http, url, document, path, body):
    answer = http.post(url + path, json=body)
    check_answer(document, path, "post", answer)
    asked = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fits = jsonschema.Draft202012Validator(resolved(document, asked)).is_valid(body)
    assert fits == (answer.status_code in (200, 404))


@pytest.mark.parametrize("path", BODIES)
def test_any_value_at_any_key_is_answered_as_the_schema_says(http, url, document, path):
    asked = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator(resolved(document, asked))
    for key in BODIES[path][0]:
        for value in BAD_VALUES:
            answer = http.post(url + path, json={**BODIES[path][0], key: value})
            check_answer(document, path, "post", answer)
            fits = validator.is_valid({**BODIES[path][0], key: value})
            assert fits == (answer.status_code in (200, 404)), (key, value)


def fuzz(url: str, examples: int) -> None:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    good, bad = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    for operation in schema.get_all_operations():
        # a GET without parameters cannot be asked wrongly
        for mode in (good, bad) if operation.ok().method == "post" else (good,):
            strategy = operation.ok().as_strategy(generation_mode=mode)

            @given(case=strategy)
            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def call(case):
                if (case.headers or {}).get("X-Deadline-Ms", "x").isdecimal():
                    case.headers["X-Deadline-Ms"] = "20000"  # a millisecond may well be too short: 503
                case.call_and_validate(checks=CHECKS)

            call()


def test_schemathesis_finds_no_500_and_no_undescribed_answer(url):
    fuzz(url, 5)


@pytest.mark.slow
def test_schemathesis_finds_no_500_and_no_undescribed_answer_in_many_requests(url):
    fuzz(url, 300)
