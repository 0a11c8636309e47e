"""`embed` and `rerank` of the retriever client: what is sent, what is accepted, what is refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from http_servers import JsonHandler, serving

from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.responses import Ranked
from verl_agentic.clients.retriever import RetrieverClient


@contextmanager
def answering(*answers: tuple[int, object]) -> Iterator[tuple[RetrieverClient, list[tuple[str, object, str]]]]:
    """A client of a server that gives each answer (status, JSON) once, the last one for ever; and what was asked."""
    asked: list[tuple[str, object, str]] = []

    class Handler(JsonHandler):
        def do_POST(self):
            asked.append((self.path, self.body(), self.headers["X-Deadline-Ms"]))
            self.answer(*answers[min(len(asked), len(answers)) - 1])

    with serving(Handler) as url:
        yield RetrieverClient(url, timeout_s=2.5), asked


def test_embed_sends_kind_and_returns_float32():
    with answering((200, {"embeddings": [[1, 0.5], [0, -2.0]], "dimension": 2, "model": "m"})) as (client, asked):
        vectors = client.embed_sync(["a", "b\ud800"], "passage")
    assert asked[0][:2] == ("/embed", {"texts": ["a", "b\ud800"], "kind": "passage"})
    assert 2000 < int(asked[0][2]) <= 2500, "the server is told how long its answer is awaited"
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[1.0, 0.5], [0.0, -2.0]]


def test_rerank_returns_the_best_first():
    results = [{"index": 2, "relevance_score": -1}, {"index": 0, "relevance_score": 3.5}]
    with answering((200, {"results": results})) as (client, asked):
        assert client.rerank_sync("q", ["a", "b", "c"], top_n=2) == [Ranked(0, 3.5), Ranked(2, -1.0)]
        assert client.rerank_sync("q", []) == []
    assert [line[:2] for line in asked] == [("/rerank", {"query": "q", "documents": ["a", "b", "c"], "top_n": 2})]


def test_both_are_tried_again_and_counted():
    with answering((503, {"error": "busy"}), (200, {"embeddings": [[1.0]]})) as (client, asked):
        assert client.embed_sync(["a"]).tolist() == [[1.0]]
    assert len(asked) == 2
    assert (client.counters.calls, client.counters.retries, client.counters.queries) == (1, 1, 0)


def test_a_server_without_encoder_says_so():
    sentence = "This index has no encoder; start the server with --embedder NAME."
    with answering((404, {"error": sentence})) as (client, asked), pytest.raises(RetrieverError) as caught:
        client.embed_sync(["a"])
    assert (caught.value.kind, caught.value.what) == ("refused", f"answers 404: {sentence}")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        ([], "`embeddings` holds no vectors for 2 texts"),
        ({"embeddings": [[1.0]]}, "`embeddings` holds 1 vectors for 2 texts"),
        ({"embeddings": [[1.0], [1.0, 2.0]]}, "`embeddings` holds vectors of different lengths"),
        ({"embeddings": [["1"], ["2"]]}, "`embeddings` is not a list of equally long lists of numbers"),
        ({"embeddings": [[], []]}, "`embeddings` is not a list of equally long lists of numbers"),
        ({"embeddings": [1.0, 2.0]}, "`embeddings` is not a list of equally long lists of numbers"),
        ({"embeddings": [[True], [False]]}, "`embeddings` is not a list of equally long lists of numbers"),
        ({"embeddings": [[None], [1.0]]}, "`embeddings` is not a list of equally long lists of numbers"),
        ({"embeddings": [[1e300], [1.0]]}, "`embeddings` holds a number that is not finite"),
        ({"embeddings": [[float("nan")], [1.0]]}, "`embeddings` holds a number that is not finite"),
    ],
)
def test_p23_embeddings_of_an_unknown_shape(payload, what):
    with answering((200, payload)) as (client, _), pytest.raises(RetrieverError) as caught:
        client.embed_sync(["a", "b"])
    assert (caught.value.kind, caught.value.what) == ("shape", f"answers in an unknown shape: {what}")


def scored(index: object, score: object = 1.0) -> dict[str, object]:
    return {"index": index, "relevance_score": score}


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        ({"result": []}, "`results` holds no documents where 2 are due"),
        ({"results": [scored(0)]}, "`results` holds 1 documents where 2 are due"),
        ({"results": [scored(0), scored(2)]}, "`results[1]` has no `index` of one of the 2 documents"),
        ({"results": [scored(0), scored(True)]}, "`results[1]` has no `index` of one of the 2 documents"),
        ({"results": [scored(0), 7]}, "`results[1]` has no `index` of one of the 2 documents"),
        ({"results": [scored(0, "1"), scored(1)]}, "`results[0]` has no finite `relevance_score`"),
        ({"results": [scored(0, 10**400), scored(1)]}, "`results[0]` has no finite `relevance_score`"),
        ({"results": [scored(1), scored(1)]}, "`results` names a document twice"),
    ],
)
def test_p23_rankings_of_an_unknown_shape(payload, what):
    with answering((200, payload)) as (client, _), pytest.raises(RetrieverError) as caught:
        client.rerank_sync("q", ["a", "b"])
    assert (caught.value.kind, caught.value.what) == ("shape", f"answers in an unknown shape: {what}")
