"""Queries that a trajectory asks again: counted after normalisation, and logged as a scalar of the session."""

import asyncio

import pytest

from verl_agentic.core.queries import QueryLog, normalise_query


@pytest.mark.parametrize(
    ("query", "normalised"),
    [
        ("  Who founded\tOslo? ", "who founded oslo"),
        ("STRASSE straße", "strasse strasse"),
        ("ﬁne １２", "fine 12"),
        ("naïve", "naïve"),
        ("mother-in-law", "mother in law"),
        ("???", "???"),
        ("", ""),
    ],
)
def test_normalisation(query, normalised):
    assert normalise_query(query) == normalised


def test_each_further_time_counts():
    log = QueryLog()
    for query in ("capital of Peru", "Capital of  Peru?", "capital of Chile", "CAPITAL OF PERU", "peru"):
        log.note(query)
    assert log.duplicates == 2


def test_a_sessions_rows_carry_the_count_beside_the_methods_scalars():
    pytest.importorskip("verl")
    from verl_agentic.bridge.output import row_outputs
    from verl_agentic.core.method import Score
    from verl_agentic.core.outcomes import Ok
    from verl_agentic.core.trajectory import Episode, Row

    row = Row((1,), (2,), (1,), (-0.5,), ())
    outputs = row_outputs(
        Episode("q", (row,), Ok(), "a", {}, 0, ()),
        Score([[1.0]], {"acc": 1.0}),
        {"generate_sequences": 0.0, "tool_calls": 0.0},
        {},
        {"duplicate_queries": 2.0},
    )
    scalars = {"acc": 1.0, "duplicate_queries": 2.0, "session_reward": 1.0}
    assert [output.extra_fields["reward_extra_info"] for output in outputs] == [scalars]


def test_the_sessions_search_notes_queries_also_those_that_fail():
    from verl_agentic.bridge.agent_loop import Retrieval
    from verl_agentic.clients.retriever import RetrieverClient
    from verl_agentic.core.outcomes import InfraFaultError

    retrieval = Retrieval(RetrieverClient("http://127.0.0.1:9", retries=0))
    for query in ("river Belm", "River Belm"):
        with pytest.raises(InfraFaultError, match=r"retriever: retriever at http://127\.0\.0\.1:9 does not answer"):
            asyncio.run(retrieval(query))
    assert retrieval.log.duplicates == 1
    assert retrieval.seconds > 0
