"""What the benchmark of dep_search makes of its runs: use of the memory, capacities, and their panels."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import dep_search as benchmark
import method_tables

from verl_agentic.core.outcomes import Ok
from verl_agentic.core.trajectory import Episode, Row
from verl_agentic.demo.evaluate import Asked
from verl_agentic.report.curves import draw

REWARD = {"metric": "f1", "k1": 2, "k2": 1, "lambda_ret": 0.1, "lambda_dec": 0.05}


def measured(**after):
    return {
        name.replace("__", "/"): {"before": {"mean": 0.0}, "after": {"mean": value}} for name, value in after.items()
    }


def record(with_memory=True):
    shared = {"em": 0.5, "searches": 3.0, "actions__Decompose": 1.0, "actions__Retrieve": 3.0, "actions__Memory": 2.0}
    one = {"em": 1.0, "searches": 1.0, "actions__Decompose": 1.0, "actions__Retrieve": 1.0, "actions__Memory": 0.0}
    of_memory = [(4.0, 5.0, 3.0), (0.0, 0.0, 0.0)] if with_memory else []
    names = ("memory__stored", "memory__recalled", "memory__reused")
    for own, values in zip((shared, one), of_memory, strict=False):
        own.update(zip(names, values, strict=True))
    kinds = {"shared": {"count": 100, **measured(**shared)}, "1hop": {"count": 120, **measured(**one)}}
    return {"derived": {"arms": {"dep_search_cpu": {"seeds": [1], "kinds": kinds}}}}


def capacities():
    own = {"count": 2, "em": 0.5, "searches": 3.0, "memory/stored": 4.0, "memory/recalled": 2.0, "memory/reused": 1.0}
    none = {**own, "em": 1.0, "memory/stored": 0.0, "memory/reused": 0.0}
    return {"1": {"shared": own, "1hop": none}, "20": {"shared": {**own, "memory/reused": 3.0}, "1hop": none}}


def test_the_reuse_rate_is_of_the_entries_stored():
    kinds = record()["derived"]["arms"]["dep_search_cpu"]["kinds"]
    assert benchmark.reuse_rate(kinds["shared"]) == 0.75
    assert benchmark.reuse_rate(kinds["1hop"]) is None
    assert benchmark.reuse_rate({"em": {}}) is None


def test_the_table_of_the_memory_by_kind():
    lines = method_tables.memory_use(record()).splitlines()
    assert lines[2:] == [
        "| 1hop | `dep_search_cpu` | 1.000 | 1.00 | 0.00 | 0.00 | 0.00 |  |",
        "| shared | `dep_search_cpu` | 0.500 | 3.00 | 4.00 | 5.00 | 3.00 | 0.75 |",
    ]
    assert method_tables.memory_use(record(with_memory=False)) == ""


def test_the_table_of_capacities():
    found = {**record(), "further": {"checkpoint": "dep_search_cpu-seed1, step 30", "capacities": capacities()}}
    text = method_tables.memory_capacities(found)
    assert text.startswith("One policy (dep_search_cpu-seed1, step 30) at each capacity of its memory:")
    assert "| 1 | shared | 2 | 0.500 | 3.00 | 2.00 | 0.25 |" in text
    assert "| 20 | shared | 2 | 0.500 | 3.00 | 2.00 | 0.75 |" in text
    assert "| 20 | 1hop | 2 | 1.000 | 3.00 | 2.00 |  |" in text
    assert method_tables.memory_capacities(record()) == ""


def test_the_panels_show_actions_reuse_and_capacities(tmp_path):
    found = {**record(), "further": {"checkpoint": "", "capacities": capacities()}}
    actions, reuse, em, by_capacity = benchmark.panels(found)
    assert actions.marked["Memory"] == [("shared", 2.0), ("1hop", 0.0)]
    assert "Conclusion" not in actions.marked
    assert list(reuse.marked.values()) == [[("shared", 0.75)]]
    assert em.marked["shared"] == [("1", 0.5), ("20", 0.5)]
    assert by_capacity.marked == {"shared": [("1", 0.25), ("20", 0.75)], "1hop": []}
    draw([actions, reuse, em, by_capacity], tmp_path / "p.png", "t", columns=2)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_means_by_kind_are_of_the_method_s_own_score():
    asked = [Asked("a ?", ("x",), "1hop"), Asked("b ?", ("y",), "1hop"), Asked("c ?", ("z",), "shared")]
    row = Row((1,), (2,), (1,), None, ())
    episodes = [Episode(q.text, (row,), Ok(), prediction) for q, prediction in zip(asked, "xxz", strict=True)]
    found = benchmark.by_kind(asked, episodes, REWARD)
    assert {kind: (own["count"], own["em"]) for kind, own in found.items()} == {
        "headline": (2, 0.5),
        "1hop": (2, 0.5),
        "shared": (1, pytest.approx(1.0)),
    }
