"""Addresses of retrievers: which are accepted, which is asked next, and which are near (case P43)."""

import pytest

from verl_agentic.clients.endpoints import Endpoints, is_near
from verl_agentic.clients.retriever import RetrieverClient


def test_bad_addresses_are_refused():
    with pytest.raises(ValueError, match=r"needs at least one address; set agentic.retriever.urls"):
        RetrieverClient([])
    for host in (
        "",
        "h:80000",
        "h:-1",
        "h:0",
        "h:abc",
        "h:1/\x00",
        "h\n:1",
        "[::1",
        "[zz]:1",
        "a" * 64,
        "a..b",
        "\ud800",
    ):
        with pytest.raises(ValueError, match=r"^'http://.*' is not an address like http://127\.0\.0\.1:8000$"):
            RetrieverClient(["http://good:1", f"http://{host}"])
    for url in ("127.0.0.1:8000", "ftp://host", " http://host"):
        with pytest.raises(ValueError, match=rf"^'{url}' is not an address like http://127\.0\.0\.1:8000$"):
            RetrieverClient(url)


@pytest.mark.parametrize("url", ["HTTP://Host:80", "http://my_host/base/", "https://[::1]:8000", "http://münchen.de"])
def test_good_addresses_are_accepted(url):
    assert RetrieverClient(url).endpoints.urls == (url.rstrip("/"),)


def test_endpoints_take_turns_and_prefer_the_idle():
    endpoints = Endpoints(["a", "b", "c"])
    with endpoints.use(set()) as first, endpoints.use(set()) as second, endpoints.use(set()) as third:
        assert sorted([first, second, third]) == ["a", "b", "c"]
    endpoints.rest("c")
    with endpoints.use(set()) as busy, endpoints.use(set()) as free:
        assert sorted([busy, free]) == ["a", "b"]
    with endpoints.use({"a", "b"}) as only, endpoints.use({"a", "b"}) as again:
        assert (only, again) == ("c", "c")


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://10.1.2.3", True),
        ("http://192.168.0.7", True),
        ("http://node-17:8000", True),
        ("http://retriever.internal", True),
        ("https://8.8.8.8", False),
        ("https://search.example.org", False),
    ],
)
def test_p43_near_addresses(url, near):
    assert is_near(url) is near
