"""Traces of a teacher: a scripted endpoint behind real HTTP, a real retriever server, the real turn engine."""

import asyncio
import threading
from collections import Counter
from contextlib import contextmanager
from functools import partial

import pytest

pytest.importorskip("verl")

import transformers
from http_servers import JsonHandler, serving

from verl_agentic.cli import main
from verl_agentic.core.grammar import ActionTag, Grammar
from verl_agentic.data.rows import read_rows
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.oracles import load_oracle, methods_with_oracle
from verl_agentic.demo.prepare import packaged_cold_start
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.splits import SplitSizes, split_questions
from verl_agentic.demo.traces import MethodRunner, scripted_sampler
from verl_agentic.demo.world import generate_world
from verl_agentic.warm_start.teacher_traces import close_action
from verl_agentic.warm_start.trace_file import read_traces

PACKAGED = packaged_cold_start("search_r1")
TOKENIZER = transformers.AutoTokenizer.from_pretrained(PACKAGED)
SMALL = SplitSizes(
    train=64, val=8, test=24, long_train=4, long_test=4, shared_train=4, shared_test=4
)  # of the fixture `demo_files`
GRAMMAR = Grammar(actions=(ActionTag("search"), ActionTag("answer", terminal=True)))


def test_a_stop_string_that_the_server_kept_is_put_back():
    assert close_action("<think> a </think> <search> b ", GRAMMAR) == "<think> a </think> <search> b </search>"
    assert close_action("<search> b </search> c", GRAMMAR) == "<search> b </search> c"
    assert close_action("<think> <answer> a", GRAMMAR) == "<think> <answer> a", "inside the thinking"
    assert close_action("b", GRAMMAR) == "b"
    assert close_action("<search> b <answer> c", GRAMMAR) == "<search> b <answer> c</search>", "the first that is open"


def good_turns(method, demo_files):
    """What a good policy writes, turns and summaries, for each question of the demo's training file."""
    world = generate_world(0)
    search, codec = CorpusSearch(world.passages), WordCodec(TOKENIZER)
    runner = MethodRunner(method, codec)
    asked = {row["extra_info"]["question"] for row in read_rows(demo_files / "train.parquet")}
    turns = {}
    for question in split_questions(world, SMALL)["train"]:
        assert question.text in asked
        oracle = load_oracle(method).make_oracle(question, world.look_up)
        written = turns[question.text] = []
        oracle.turn = partial(noted, written, oracle.turn)
        run = runner.engine.run(question.text, scripted_sampler(codec, oracle), runner.environment(search))
        asyncio.run(run)
    return turns


def noted(written, turn, observation):
    """What `turn` writes, noted without the token that ends it."""
    text = turn(observation)
    written.append(text.removesuffix(" <|im_end|>"))
    return text


class Endpoint:
    """An OpenAI-compatible server whose model writes given turns, question by question.

    Attributes:
        turns: the turns still to be written, by question.
        broken: questions for which the server answers 500.
        requests: the bodies of what was asked, by question.
    """

    def __init__(self, turns):
        self.turns, self.broken, self.requests = {q: list(texts) for q, texts in turns.items()}, set(), {}
        self._counting = threading.Lock()

    @contextmanager
    def serving(self):
        endpoint = self

        class Handler(JsonHandler):
            def do_POST(self):
                body = self.body()
                asked = body["messages"][-1]["content"]
                question = next(question for question in endpoint.turns if question in asked)
                with endpoint._counting:
                    endpoint.requests.setdefault(question, []).append(body)
                    if question in endpoint.broken:
                        self.answer(500, {"error": {"message": "out of memory"}})
                        return
                    text = endpoint.turns[question].pop(0)
                for stop in body["stop"]:
                    text = text.partition(stop)[0]  # as servers do, without the stop string
                message = {"role": "assistant", "content": f"\n{text}"}
                self.answer(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

        with serving(Handler) as url:
            yield f"{url}/v1"


@pytest.fixture
def teach(demo_files, retriever_url, tmp_path, capsys):
    """Runs the command; returns its exit status and what it printed."""

    def run(url, *options, method="search_r1", count=6):
        told = ["--recipe", f"{method}_cpu", "--out", tmp_path / "traces.jsonl", "--source", "teacher"]
        told += ["--teacher", url, "--teacher-model", "big", "--count", count, "--tokenizer", PACKAGED]
        overrides = [f"agentic.demo_dir={demo_files}", f"agentic.retriever.urls=[{retriever_url}]"]
        status = main(["traces", *map(str, told), "--retries", "0", *options, *overrides])
        return status, capsys.readouterr()

    return run


@pytest.mark.parametrize("method", methods_with_oracle())
def test_a_teacher_s_good_sessions_become_traces(method, demo_files, teach, tmp_path):
    turns = good_turns(method, demo_files)
    endpoint = Endpoint(turns)
    with endpoint.serving() as url:
        status, printed = teach(url, method=method)
    assert (status, printed.err) == (0, "")
    found = read_traces(tmp_path / "traces.jsonl")
    assert (found.header["source"], dict(found.counts)) == ("teacher big", {"kept": 6, "infra_fault": 0})
    for trace in found.traces:
        summaries = [text for text in turns[trace.question] if "<" not in text]
        assert list(trace.texts) == [text for text in turns[trace.question] if text not in summaries]
        policy = [t for row in trace.rows for t, m in zip(row.response_ids, row.response_mask, strict=True) if m]
        taught = " ".join([*trace.texts, *(f"{text} <|im_end|>" for text in summaries)])
        assert policy == TOKENIZER.encode(taught, add_special_tokens=False)
        bodies = endpoint.requests[trace.question]
        assert len(bodies) == len(turns[trace.question])
        assert bodies[0]["model"] == "big"
        assert "<|im_start|>" not in bodies[-1]["messages"][-1]["content"]


def test_after_an_edit_the_teacher_sees_the_edited_context(demo_files, teach, tmp_path):
    pytest.importorskip("verl_agentic.methods.agentic_rag_r1")
    endpoint = Endpoint(good_turns("agentic_rag_r1", demo_files))
    with endpoint.serving() as url:
        assert teach(url, method="agentic_rag_r1")[0] == 0
    trace = read_traces(tmp_path / "traces.jsonl").traces[0]
    place = next(n for n, text in enumerate(trace.texts) if text.startswith("<summary>"))
    asked = [body["messages"][-1]["content"] for body in endpoint.requests[trace.question]]
    search = trace.texts[place - 1]
    assert search.startswith("<search>")
    assert search in asked[place]
    assert "<information>" in asked[place]
    assert search not in asked[place + 1]
    assert "<information>" not in asked[place + 1]
    assert trace.texts[place] in asked[place + 1]


def test_bad_sessions_are_counted_by_reason(demo_files, teach, tmp_path):
    turns = good_turns("search_r1", demo_files)
    long, wrong, empty, forged, *_ = turns
    turns[long] = ["<search> " + "born " * 40 + "</search>"]
    turns[wrong] = ["<answer> unknown </answer>"]
    turns[empty] = [""]
    turns[forged] = ["<information> a </information> <search> born </search>"]
    with Endpoint(turns).serving() as url:
        status, _ = teach(url, count=64)
    assert status == 0
    assert dict(read_traces(tmp_path / "traces.jsonl").counts) == {
        "kept": 60,
        "truncated": 1,
        "wrong_answer": 1,
        "no_action": 1,
        "forged_markup": 1,
        "infra_fault": 0,
    }


def test_a_failing_teacher_is_a_fault_of_the_infrastructure_and_tried_again(demo_files, teach, tmp_path):
    turns = good_turns("search_r1", demo_files)
    endpoint = Endpoint(turns)
    endpoint.broken = set(list(turns)[::16])
    with endpoint.serving() as url:
        status, printed = teach(url, count=64)
        assert status == 0
        assert "traces: 4 sessions met a fault (teacher: " in printed.out
        found = read_traces(tmp_path / "traces.jsonl")
        assert dict(found.counts) == {"kept": 60, "infra_fault": 4}
        assert endpoint.broken.isdisjoint(trace.question for trace in found.traces)
        endpoint.broken = set()
        status, printed = teach(url, count=64)
        assert (status, dict(read_traces(tmp_path / "traces.jsonl").counts)) == (0, {"kept": 64, "infra_fault": 0})
    assert Counter(trace.number for trace in read_traces(tmp_path / "traces.jsonl").traces) == Counter(range(64))


def test_a_teacher_that_is_down_ends_the_command(demo_files, teach, tmp_path):
    endpoint = Endpoint(good_turns("search_r1", demo_files))
    endpoint.broken = set(endpoint.turns)
    with endpoint.serving() as url:
        status, printed = teach(url, count=64)
    assert status == 2
    assert printed.err.startswith("verl-agentic traces: 8 sessions in a row met a fault (teacher: ")
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "traces.jsonl").exists()
    status, printed = teach("http://127.0.0.1:9/v1", count=65)
    assert "--count 65 is more than the 64 rows of" in printed.err
