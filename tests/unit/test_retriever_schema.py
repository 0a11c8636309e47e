"""The wire schema: cases P23, P32 and P47, and properties over arbitrary JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retriever_server.errors import RequestError
from retriever_server.schema import (
    Document,
    Limits,
    ResponseError,
    RetrieveRequest,
    parse_request,
    parse_response,
    render_request,
    render_response,
)

LIMITS = Limits(default_topk=3, max_topk=100, max_queries=4)


def refused(payload: object) -> str:
    with pytest.raises(RequestError) as caught:
        parse_request(payload, LIMITS)
    return str(caught.value)


def test_full_request():
    payload = {"queries": ["a", "b"], "topk": 7, "return_scores": True}
    assert parse_request(payload, LIMITS) == RetrieveRequest(("a", "b"), 7, True)


def test_singular_query_and_defaults():
    assert parse_request({"query": "a"}, LIMITS) == RetrieveRequest(("a",), 3, False)


def test_p32_null_topk_means_the_default():
    assert parse_request({"queries": ["a"], "topk": None}, LIMITS).topk == 3


@pytest.mark.parametrize(
    ("topk", "sentence"),
    [
        (0, "`topk` must be between 1 and 100, not 0."),
        (-1, "`topk` must be between 1 and 100, not -1."),
        (101, "`topk` must be between 1 and 100, not 101."),
        (10**9, "`topk` must be between 1 and 100, not 1000000000."),
        (10**40, "`topk` must be between 1 and 100, not a far larger number."),
        ("3", "`topk` must be a whole number or null, not a string."),
        (3.0, "`topk` must be written as a whole number such as 3, not 3.0."),
        (1e300, "`topk` must be written as a whole number such as 3, not 1e+300."),
        (float("nan"), "`topk` must be written as a whole number such as 3, not NaN."),
        (float("-inf"), "`topk` must be written as a whole number such as 3, not -Infinity."),
        (True, "`topk` must be a whole number or null, not a boolean."),
        ([3], "`topk` must be a whole number or null, not a list."),
    ],
)
def test_p32_bad_topk_is_refused(topk, sentence):
    assert refused({"queries": ["a"], "topk": topk}) == sentence


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ({"queries": "a"}, "`queries` must be a non-empty list of strings, not a string."),
        ({"queries": []}, "`queries` must be a non-empty list of strings, not an empty list."),
        ({"queries": None}, "`queries` must be a non-empty list of strings, not null."),
        ({}, "`queries` must be a non-empty list of strings, not null."),
        ({"queries": ["a", 3]}, "`queries[1]` must be a string, not a number."),
        ({"queries": ["a"] * 5}, "`queries` holds 5 queries; at most 4 fit in one request."),
        ({"queries": ["a"], "query": "a"}, "Give either `queries` or `query`, not both."),
        ({"query": []}, "`query` must be a string, not an empty list; use `queries` for a list."),
        ({"queries": ["a"], "return_scores": "yes"}, "`return_scores` must be true or false, not a string."),
        (["a"], "The body must be a JSON object with `queries`, not a list."),
        (None, "The body must be a JSON object with `queries`, not null."),
        (
            {"queries": ["a"], "top_k": 3},
            "Unknown key 'top_k'; did you mean `topk`; the keys are queries, query, topk, return_scores.",
        ),
        ({"queries": ["a"], "zzz": 3}, "Unknown key 'zzz'; the keys are queries, query, topk, return_scores."),
    ],
)
def test_p47_wrong_types_and_unknown_keys_are_refused_in_one_sentence(payload, sentence):
    assert refused(payload) == sentence


@pytest.mark.parametrize("query", ["", "  ", "x" * 50_000, "a\x00b", "\ud800", "\u202eabc", "שלום", "🙂"])
def test_p47_any_string_is_a_query(query):
    assert parse_request({"queries": [query]}, LIMITS).queries == (query,)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
KEYED = st.dictionaries(st.sampled_from(["queries", "query", "topk", "return_scores", "k"]), JSON)


@given(JSON | KEYED)
def test_any_json_is_a_request_or_a_sentence(payload):
    try:
        request = parse_request(payload, LIMITS)
    except RequestError as error:
        sentence = str(error)
    else:
        check_request(request)
        sentence = "."
    assert sentence.endswith(".")
    assert "\n" not in sentence


def check_request(request: RetrieveRequest) -> None:
    assert 1 <= len(request.queries) <= 4
    assert all(isinstance(query, str) for query in request.queries)
    assert 1 <= request.topk <= 100


@given(JSON | st.dictionaries(st.sampled_from(["result", "results"]), JSON), st.integers(0, 3))
def test_p23_any_json_is_a_response_or_a_response_error(payload, count):
    try:
        documents = parse_response(payload, count)
    except ResponseError as error:
        sentence = str(error)
    else:
        sentence = ""
        assert len(documents) == count
    assert "\n" not in sentence


DOCUMENTS = st.lists(
    st.builds(Document, st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False)), max_size=3
)


@given(st.lists(DOCUMENTS, max_size=3))
def test_responses_survive_the_wire(results):
    payload = json.loads(json.dumps(render_response(results, return_scores=True)))
    assert parse_response(payload, len(results)) == results


def test_wire_of_a_response_with_and_without_scores():
    results = [[Document("p1", "text", 0.5)], []]
    assert render_response(results, True) == {
        "result": [[{"document": {"id": "p1", "contents": "text"}, "score": 0.5}], []]
    }
    assert render_response(results, False) == {"result": [[{"id": "p1", "contents": "text"}], []]}


def test_bare_documents_are_read_without_scores():
    assert parse_response({"result": [[{"id": 7, "contents": "text"}]]}, 1) == [[Document("7", "text", None)]]


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ({"results": []}, "the response has no `result` key (found keys ['results'])"),
        ([], "the response has no `result` key (found an empty list)"),
        ({"result": {}}, "`result` is not a list of lists"),
        ({"result": [[], []]}, "`result` holds 2 lists for 1 queries"),
        ({"result": [["text"]]}, "`result[0][0]` is not a document with a string `contents` (found a string)"),
        (
            {"result": [[{"document": {"id": "1", "text": "t"}, "score": 1}]]},
            "`result[0][0]` is not a document with a string `contents` (found keys ['id', 'text'])",
        ),
        (
            {"result": [[{"document": {"id": "1", "contents": "t"}, "score": "1"}]]},
            "`result[0][0]` has a `score` that is not a finite number",
        ),
    ],
)
def test_p23_unknown_shapes_are_rejected(payload, sentence):
    with pytest.raises(ResponseError) as caught:
        parse_response(payload, 1)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    "score", [10**400, -(10**400), float("nan"), float("inf"), True], ids=["huge", "-huge", "nan", "inf", "true"]
)
def test_scores_that_no_float_holds_are_rejected(score):
    with pytest.raises(ResponseError, match="has a `score` that is not a finite number"):
        parse_response({"result": [[{"document": {"id": "1", "contents": "t"}, "score": score}]]}, 1)
    assert parse_response({"result": [[{"document": {"contents": "t"}, "score": 10**300}]]}, 1)[0][0].score == 1e300


def test_rendered_requests_are_valid():
    assert parse_request(render_request(["a"], None), LIMITS) == RetrieveRequest(("a",), 3, True)
