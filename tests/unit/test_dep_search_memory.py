"""dep_search: the memory, against a plain list and by hand."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_agentic.methods.dep_search.memory import Entry, Memory, cosine

EAST, NORTH, WEST = (1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)


def filled(capacity, *facts):
    memory = Memory(capacity)
    for text, vector in facts:
        memory.write(text, vector)
    return memory


def texts(entries):
    return [entry.text for entry in entries]


class PlainList:
    """The reference: a list of [text, vector, written, used]."""

    def __init__(self, capacity):
        self.capacity, self.items, self.now = capacity, [], 0

    def write(self, text, vector):
        self.now += 1
        self.items = [item for item in self.items if item[0] != text]
        self.items.append([text, vector, self.now, self.now])
        if len(self.items) > self.capacity:
            self.items.remove(sorted(self.items, key=lambda item: (item[3], item[2]))[0])

    def recall(self, vector, recent, threshold):
        self.now += 1
        newest = sorted(self.items, key=lambda item: item[2], reverse=True)
        found = newest[:recent]
        found += sorted(
            (item for item in newest[recent:] if naive(vector, item[1]) > threshold),
            key=lambda item: naive(vector, item[1]),
            reverse=True,
        )
        for item in found:
            item[3] = self.now
        return [item[0] for item in found]


def naive(a, b):
    dot, lengths = sum(x * y for x, y in zip(a, b, strict=True)), math.hypot(*a) * math.hypot(*b)
    return max(-1.0, min(1.0, dot / lengths)) if lengths else 0.0


def test_it_does_as_a_plain_list_over_10000_sequences():
    rng = random.Random(5)
    # Lengths of whole numbers, so that two ways to compute a cosine round alike.
    vectors = [(3.0, 4.0), (4.0, 3.0), (-3.0, 4.0), (5.0, 0.0), (0.0, -5.0), (0.0, 0.0), (8.0, 6.0)]
    for _ in range(10_000):
        capacity = rng.randint(1, 4)
        ours, plain = Memory(capacity), PlainList(capacity)
        for _ in range(rng.randint(1, 10)):
            vector = rng.choice(vectors)
            if rng.random() < 0.6:
                text = rng.choice("abcdef")
                ours.write(text, vector)
                plain.write(text, vector)
            else:
                asked = (vector, rng.randint(0, 3), rng.choice([-1.0, 0.0, 0.5, 0.9, 1.0]))
                assert texts(ours.recall(*asked)) == plain.recall(*asked)
        held = sorted(plain.items, key=lambda item: -item[2])
        assert [(e.text, e.vector, e.written, e.used) for e in ours.entries] == [tuple(item) for item in held]


def test_the_least_recently_used_leaves():
    memory = filled(2, ("a", EAST), ("b", NORTH), ("c", WEST))
    assert texts(memory.entries) == ["c", "b"]


def test_a_read_refreshes_use_and_not_the_time_of_writing():
    memory = filled(2, ("a", EAST), ("b", NORTH))
    assert texts(memory.recall(EAST, recent=0, threshold=0.5)) == ["a"]
    assert texts(memory.recall(EAST, recent=1, threshold=1.0)) == ["b"]
    assert texts(memory.recall(EAST, recent=0, threshold=0.5)) == ["a"]
    memory.write("c", WEST)
    assert texts(memory.entries) == ["c", "a"]


def test_a_duplicate_refreshes_instead_of_adding():
    memory = filled(2, ("a", EAST), ("b", NORTH), ("a", WEST))
    assert memory.entries == (Entry("a", WEST, written=3, used=3), Entry("b", NORTH, written=2, used=2))
    memory.write("c", EAST)
    assert texts(memory.entries) == ["c", "a"]


def test_of_what_was_recalled_together_the_first_written_leaves_first():
    memory = filled(2, ("a", EAST), ("b", EAST))
    memory.recall(EAST, recent=2, threshold=1.0)
    memory.write("c", EAST)
    assert texts(memory.entries) == ["c", "b"]


def test_recent_ones_come_first_and_then_the_similar_by_similarity():
    memory = filled(9, ("far", WEST), ("near", EAST), ("half", (1.0, 1.0)), ("b", NORTH), ("c", WEST))
    assert texts(memory.recall(EAST, recent=2, threshold=0.5)) == ["c", "b", "near", "half"]


def test_capacity_1():
    memory = filled(1, ("a", EAST), ("b", NORTH))
    assert texts(memory.recall(NORTH, recent=2, threshold=0.5)) == ["b"]


def test_an_empty_memory_recalls_nothing():
    memory = Memory(3)
    assert memory.recall(EAST, recent=2, threshold=-1.0) == ()
    assert len(memory) == 0


@pytest.mark.parametrize(("threshold", "expected"), [(0.0, ["east"]), (1.0, []), (-1.0, ["east", "north"])])
def test_the_similarity_must_be_strictly_above_the_threshold(threshold, expected):
    memory = filled(3, ("west", WEST), ("north", NORTH), ("east", EAST))
    assert texts(memory.recall(EAST, recent=0, threshold=threshold)) == expected


def test_rounding_lifts_no_similarity_above_1():
    vector = (0.1, 0.2, 0.3)
    assert filled(1, ("a", vector)).recall(vector, recent=0, threshold=1.0) == ()


def test_a_vector_of_zeros_is_similar_to_nothing():
    memory = filled(2, ("a", (0.0, 0.0)), ("b", EAST))
    assert texts(memory.recall(EAST, recent=0, threshold=0.0)) == ["b"]
    assert memory.recall((0.0, 0.0), recent=0, threshold=0.0) == ()


def test_numpy_vectors_and_unicode():
    memory = filled(3, ("Łódź là thành phố", np.array([1, 0], dtype=np.float32)), ("誰", np.array([0, 1])))
    assert texts(memory.recall(np.array([1.0, 0.0]), recent=0, threshold=0.5)) == ["Łódź là thành phố"]
    assert memory.entries[0].vector == (0.0, 1.0)


def test_it_starts_from_entries_and_time_goes_on():
    start = filled(5, ("a", EAST), ("b", NORTH), ("c", WEST))
    start.recall(EAST, recent=0, threshold=0.5)
    memory = Memory(2, reversed(start.entries))
    assert memory.entries == (Entry("c", WEST, 3, 3), Entry("a", EAST, 1, 4))
    memory.write("d", EAST)
    assert memory.entries == (Entry("d", EAST, 5, 5), Entry("a", EAST, 1, 4))
    assert texts(start.entries) == ["c", "b", "a"]


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_1_is_refused(capacity):
    with pytest.raises(ValueError, match=f"at least 1, got {capacity}"):
        Memory(capacity)


def test_vectors_of_another_length_are_refused():
    memory = filled(2, ("a", EAST))
    with pytest.raises(ValueError, match="a vector of 3 numbers in a memory whose vectors have 2"):
        memory.write("b", (1.0, 2.0, 3.0))
    with pytest.raises(ValueError, match="a memory whose vectors have"):
        memory.recall((1.0,), recent=0, threshold=0.5)
    with pytest.raises(ValueError, match="two entries of a memory say 'a'"):
        Memory(2, [*memory.entries, *memory.entries])


numbers = st.lists(st.floats(-100, 100).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=3, max_size=3)


@given(numbers, numbers)
def test_the_cosine_is_that_of_a_naive_loop(a, b):
    assert cosine(np.array(a), np.array(b)) == pytest.approx(naive(a, b), abs=1e-12)
    assert -1.0 <= cosine(np.array(a), np.array(b)) <= 1.0


@given(st.lists(numbers, max_size=12), numbers, st.floats(-1, 1))
def test_recall_is_a_naive_cosine_loop(vectors, query, threshold):
    memory = filled(20, *((str(i), vector) for i, vector in enumerate(vectors)))
    scored = {str(i): naive(query, vector) for i, vector in enumerate(vectors)}
    recalled = set(texts(memory.recall(query, recent=0, threshold=threshold)))
    clear = {text for text, similarity in scored.items() if abs(similarity - threshold) > 1e-9}
    assert recalled & clear == {text for text in clear if scored[text] > threshold}
