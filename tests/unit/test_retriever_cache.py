"""The result cache: bounded by bytes, the least recently used go first."""

import sys

from retriever_server.backends.base import Hit
from retriever_server.engine.cache import ResultCache


def hits(name: str, characters: int = 100) -> list[Hit]:
    return [Hit(0, name, "x" * characters, 1.0)]


def entry_bytes(name: str) -> int:
    """What the docstring says: query and passages as strings, 300 bytes a hit, 400 an entry."""
    strings = sys.getsizeof(name) + sys.getsizeof(name) + sys.getsizeof("x" * 100)
    return strings + 300 + 400


def test_the_least_recently_used_go_when_the_bytes_are_full():
    cache = ResultCache(2 * entry_bytes("a"))
    for name in "ab":
        cache.put((name, 3), hits(name))
    assert cache.bytes == 2 * entry_bytes("a")
    assert cache.get(("a", 3)) == hits("a")
    cache.put(("c", 3), hits("c"))
    assert (cache.get(("b", 3)), cache.get(("a", 3)), cache.get(("c", 3))) == (None, hits("a"), hits("c"))
    assert (len(cache), cache.bytes) == (2, 2 * entry_bytes("a"))


def test_another_topk_is_another_entry_and_the_same_one_is_replaced():
    cache = ResultCache(10_000)
    cache.put(("a", 3), hits("a"))
    cache.put(("a", 4), hits("b"))
    cache.put(("a", 3), hits("c"))
    assert (cache.get(("a", 3)), cache.get(("a", 4)), len(cache)) == (hits("c"), hits("b"), 2)
    assert cache.bytes == 2 * entry_bytes("a")


def test_what_alone_exceeds_the_bytes_is_not_kept_and_drops_nothing():
    cache = ResultCache(2000)
    cache.put(("a", 3), hits("a"))
    cache.put(("b", 3), hits("b", 5000))
    assert (cache.get(("b", 3)), cache.get(("a", 3))) == (None, hits("a"))


def test_no_bytes_keep_nothing_and_clear_forgets():
    cache = ResultCache(0)
    cache.put(("a", 3), hits("a"))
    assert (len(cache), cache.bytes) == (0, 0)
    cache = ResultCache(2000)
    cache.put(("a", 3), hits("a"))
    cache.clear()
    assert (cache.get(("a", 3)), cache.bytes) == (None, 0)


def test_hits_without_passages_are_remembered_too():
    cache = ResultCache(2000)
    cache.put(("a", 3), [])
    assert cache.get(("a", 3)) == []
