"""dep_search: the parser of decompositions, and the order of solving."""

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_agentic.methods.dep_search.decompose import (
    DEPENDENCIES_INVALID,
    DEPENDENCY_CYCLE,
    MALFORMED_LINE,
    NO_SUB_QUESTION,
    NUMBER_WRONG,
    REFERENCE_TO_ITSELF,
    REFERENCE_UNKNOWN,
    InvalidDecompositionError,
    SubQuestion,
    Trace,
)


def parsed(*bodies, linear=False):
    trace = Trace()
    for body in bodies:
        trace = trace.extend(body, linear)
    return trace


def dependencies(trace):
    return {question.number: set(question.dependencies) for question in trace.questions}


def test_a_chain_and_a_join():
    trace = parsed(
        "1. Who founded Acme? [deps: none]\n"
        "2. Where was #1 born? [deps: #1]\n"
        "3. Who founded Bolt?\n"
        "4. Which of #2 and #3 is older? [deps: #2, #3]"
    )
    assert [question.text for question in trace.questions] == [
        "Who founded Acme?",
        "Where was #1 born?",
        "Who founded Bolt?",
        "Which of #2 and #3 is older?",
    ]
    assert dependencies(trace) == {1: set(), 2: {1}, 3: set(), 4: {2, 3}}
    assert trace.order() == (1, 3, 2, 4)


def test_a_reference_in_the_question_is_a_dependency():
    assert dependencies(parsed("1. a\n2. spouse of #1\n3. town of #2 [deps: #1]")) == {1: set(), 2: {1}, 3: {1, 2}}


def test_items_may_stand_on_one_line_where_brackets_end_them():
    trace = parsed("1. spouse of Ada [ deps: none ] 2. town of #1 [ deps: #1 ] 3. seat of #2 [ deps: #1 , #2 ]")
    assert dependencies(trace) == {1: set(), 2: {1}, 3: {1, 2}}
    assert trace.questions[1] == SubQuestion(2, "town of #1", frozenset({1}))


@pytest.mark.parametrize("declared", ["[deps:]", "[deps: none]", "[ deps:  ]", ""])
def test_nothing_declared(declared):
    assert dependencies(parsed(f"1. Who? {declared}")) == {1: set()}


@pytest.mark.parametrize("declared", ["#1,#2", "#1 #2", " #2 , #1 ", "#1, #2, #1"])
def test_ways_to_list_references(declared):
    assert dependencies(parsed(f"1. a\n2. b\n3. c [deps:{declared}]"))[3] == {1, 2}


def test_a_later_decomposition_goes_on():
    trace = parsed("1. a\n2. b of #1", "3. c of #2\n4. d")
    assert dependencies(trace) == {1: set(), 2: {1}, 3: {2}, 4: set()}
    assert trace.order() == (1, 4, 2, 3)


def test_a_refused_decomposition_leaves_the_trace():
    trace = parsed("1. a")
    with pytest.raises(InvalidDecompositionError):
        trace.extend("3. b")
    assert trace.extend("2. b").order() == (1, 2)


def test_lines_out_of_order_are_sorted_by_their_numbers():
    trace = parsed("3. c of #2\n1. a\n2. b of #1")
    assert [question.number for question in trace.questions] == [1, 2, 3]
    assert trace.order() == (1, 2, 3)


def test_a_later_item_may_be_needed_first():
    assert parsed("1. year of #2\n2. film of Ada").order() == (2, 1)


def test_equal_questions_are_sub_questions_of_their_own():
    assert [question.text for question in parsed("1. Who?\n2. Who?", "3. Who?").questions] == ["Who?"] * 3


def test_50_sub_questions():
    body = "\n".join(f"{k}. step {k} [deps: #{k - 1}]" if k > 1 else "1. step 1" for k in range(1, 51))
    assert parsed(body).order() == tuple(range(1, 51))


def test_unicode():
    trace = parsed("1. Qui a fondé Łódź? [deps: none]\r\n2. 誰が#1を作った [deps: #1]")
    assert [question.text for question in trace.questions] == ["Qui a fondé Łódź?", "誰が#1を作った"]
    assert dependencies(trace) == {1: set(), 2: {1}}


def test_a_linear_decomposition_has_each_depend_on_the_one_before():
    trace = parsed("1. a\n2. b\n3. c of #1", "4. d", linear=True)
    assert dependencies(trace) == {1: set(), 2: {1}, 3: {1, 2}, 4: {3}}
    assert trace.order() == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("body", "notice"),
    [
        ("", NO_SUB_QUESTION),
        (" \n\t\n", NO_SUB_QUESTION),
        ("Who founded Acme?", MALFORMED_LINE),
        ("1. a\nand then\n2. b", MALFORMED_LINE),
        ("1.", MALFORMED_LINE),
        ("1. [deps: none]", MALFORMED_LINE),
        ("1) a", MALFORMED_LINE),
        ("１. a", MALFORMED_LINE),
        ("-1. a", MALFORMED_LINE),
        ("1.5 a", MALFORMED_LINE),
        ("1. a [deps: none] b", MALFORMED_LINE),
        ("9999999. a", MALFORMED_LINE),
        ("1. a [deps: some]", DEPENDENCIES_INVALID),
        ("1. a\n2. b [deps: 1]", DEPENDENCIES_INVALID),
        ("1. a\n2. b [deps: #1;]", DEPENDENCIES_INVALID),
        ("1. a\n2. b [deps: #1, none]", DEPENDENCIES_INVALID),
        ("1. a\n2. b [deps: #1", DEPENDENCIES_INVALID),
        ("1. a\n2. b [deps #1]", DEPENDENCIES_INVALID),
        ("0. a", NUMBER_WRONG),
        ("2. a", NUMBER_WRONG),
        ("1. a\n3. b", NUMBER_WRONG),
        ("1. a\n1. b", NUMBER_WRONG),
        ("1. a [deps: #1]", REFERENCE_TO_ITSELF),
        ("1. a\n2. b of #2", REFERENCE_TO_ITSELF),
        ("1. a [deps: #2]", REFERENCE_UNKNOWN),
        ("1. a of #0", REFERENCE_UNKNOWN),
        ("1. a of #999999", REFERENCE_UNKNOWN),
        ("1. a of #2\n2. b of #1", DEPENDENCY_CYCLE),
        ("1. a of #3\n2. b of #1\n3. c of #2\n4. d", DEPENDENCY_CYCLE),
    ],
)
def test_each_fault_has_its_notice(body, notice):
    with pytest.raises(InvalidDecompositionError) as caught:
        parsed(body)
    assert caught.value.notice == notice


@pytest.mark.parametrize("body", ["1. again", "2. b\n4. c"])
def test_numbers_that_do_not_go_on(body):
    with pytest.raises(InvalidDecompositionError, match=NUMBER_WRONG):
        parsed("1. a", body)


def test_a_linear_decomposition_that_looks_ahead_is_a_cycle():
    with pytest.raises(InvalidDecompositionError, match=DEPENDENCY_CYCLE):
        parsed("1. a of #2\n2. b", linear=True)


graphs = st.integers(1, 12).flatmap(
    lambda size: st.lists(st.tuples(st.integers(1, size), st.integers(1, size)), max_size=20).map(
        lambda edges: (size, {(before, after) for before, after in edges if before != after})
    )
)


@settings(max_examples=150, deadline=None)
@given(graphs)
def test_the_order_is_topological_and_a_cycle_is_refused(graph):
    """Over all graphs of up to 12 nodes, with networkx as the judge."""
    size, edges = graph
    needs = {k: sorted(before for before, after in edges if after == k) for k in range(1, size + 1)}
    body = "\n".join(f"{k}. step [deps: {', '.join(f'#{i}' for i in needs[k])}]" for k in needs)
    judge = networkx.DiGraph()
    judge.add_nodes_from(needs)
    judge.add_edges_from(edges)
    if networkx.is_directed_acyclic_graph(judge):
        order = parsed(body).order()
        assert sorted(order) == list(needs)
        place = {number: i for i, number in enumerate(order)}
        assert all(place[before] < place[after] for before, after in judge.edges)
    else:
        with pytest.raises(InvalidDecompositionError, match=DEPENDENCY_CYCLE):
            parsed(body)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="123. #[]deps:,none\n", max_size=60))
def test_any_text_is_read_or_refused_by_a_notice(body):
    try:
        trace = parsed(body)
    except InvalidDecompositionError:
        return
    assert sorted(trace.order()) == [question.number for question in trace.questions]
