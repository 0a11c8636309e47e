"""`agentic.judge`: which judge is made of it, what is refused, and what is asked of an endpoint before a run."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from http_servers import JsonHandler, serving
from omegaconf import OmegaConf

from verl_agentic.bridge.judge_prompts import load_judge_prompts
from verl_agentic.bridge.judging import judge_metrics, judgements, make_judge
from verl_agentic.bridge.settings import default_agentic, load_settings
from verl_agentic.clients.judge import JudgeClient
from verl_agentic.core.judge_prompts import placeholders
from verl_agentic.core.judging import Missing, Verdict
from verl_agentic.core.outcomes import InfraFaultError
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.cold_start import kinds_of
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import trace_source
from verl_agentic.methods import load_method
from verl_agentic.startup.preflight import PreflightError, check_judge

METHOD = load_method("agentic_rag_r1")
ROLLOUT = {"rollout": {"prompt_length": 4000, "response_length": 4000}}


def config(**judge: object):
    given = {"scorer": "endpoint", "urls": ["http://127.0.0.1:9"], "model": "some-judge", **judge}
    agentic = {"method": "agentic_rag_r1", "judge": given}
    return OmegaConf.create({"actor_rollout_ref": ROLLOUT, "agentic": agentic})


def made(**judge: object):
    return make_judge(load_settings(config(**judge)), METHOD)


@contextmanager
def endpoint(*replies: object) -> Iterator[tuple[str, list[str]]]:
    """A chat endpoint that says the replies in turn, the last for ever, or answers a (status, payload)."""
    prompts: list[str] = []

    class Handler(JsonHandler):
        def do_POST(self) -> None:
            prompts.append(self.body()["messages"][0]["content"])
            said = replies[min(len(prompts), len(replies)) - 1]
            reply = {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
            self.answer(*(said if isinstance(said, tuple) else (200, reply)))

    with serving(Handler) as url:
        yield url, prompts


def test_an_endpoint_is_made_with_the_keys_of_the_recipe():
    judge = made(urls=["http://a:1/v1", "http://b:2"], max_tokens=64, temperature=0.5, field_chars=99)
    assert isinstance(judge, JudgeClient)
    assert judge.name == "some-judge at http://a:1, http://b:2"
    assert set(judge.prompts) == set(METHOD.judged_kinds(default_agentic("agentic_rag_r1").reward))
    assert judge.sampling == {"temperature": 0.5, "top_p": 1.0, "max_tokens": 64}
    assert judge.field_chars == 99


def test_one_address_may_be_a_string():
    assert made(urls="http://a:1").name == "some-judge at http://a:1"


def test_prompts_of_the_users_stand_for_the_methods(tmp_path):
    for kind in ("retrieval", "memory", "memory_change"):
        (tmp_path / f"{kind}.txt").write_text("Is it good? {question}\n")
    assert set(made(prompts=str(tmp_path)).prompts.values()) == {"Is it good? {question}"}


@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"scorer": "none"}, r"agentic.judge.scorer is none: set it to endpoint or module:Class of a scorer"),
        ({"scorer": "endpoints"}, r"agentic.judge.scorer='endpoints' cannot be imported .* none, endpoint or module:"),
        ({"urls": []}, r"agentic.judge.scorer is endpoint and agentic.judge.urls is empty; set it"),
        ({"model": ""}, r"agentic.judge.scorer is endpoint and agentic.judge.model is empty; set it"),
        ({"urls": ["localhost:8001"]}, r"agentic.judge.urls: 'localhost:8001' is not an address like"),
        ({"urls": ["http://me:secret@h:1"]}, r"agentic.judge.urls: the address of the chat endpoint at h holds more"),
        ({"timeout_s": 0}, r"agentic.judge.timeout_s must be above 0, got 0"),
        ({"deadline_s": -1.0}, r"agentic.judge.deadline_s must be above 0, got -1"),
        ({"retries": -1}, r"agentic.judge.retries must be at least 0, got -1"),
        ({"concurrency": 0}, r"agentic.judge.concurrency must be at least 1, got 0"),
        ({"cache_size": -1}, r"agentic.judge.cache_size must be at least 0, got -1"),
        ({"field_chars": 0}, r"agentic.judge.field_chars must be at least 1, got 0"),
        ({"temperature": -0.1}, r"agentic.judge.temperature must be at least 0, got -0.1"),
        ({"top_p": 0.0}, r"agentic.judge.top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": float("nan")}, r"agentic.judge.top_p must be above 0 and at most 1, got nan"),
        ({"max_tokens": 0}, r"agentic.judge.max_tokens must be at least 1, got 0"),
        ({"prompts": "/nowhere"}, r"agentic.judge.prompts: .* there is no file /nowhere/retrieval.txt"),
        ({"prompts": 3}, r"agentic.judge.prompts must be a text or null, got 3"),
        ({"on_missing": "stop"}, r"agentic.judge.on_missing must be one of \['skip', 'group', 'fail'\], got 'stop'"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(judge, message):
    with pytest.raises(ValueError, match=message) as caught:
        made(**judge)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def judged(url: str, on_missing: str):
    """What the judge at `url` says of a session with a search, under a rule for missing judgements."""
    settings = load_settings(config(urls=[url], retries=0, on_missing=on_missing))
    episode = next(episode for episode in episodes(1) if METHOD.asks(episode, [], settings.reward))
    return asyncio.run(judgements(make_judge(settings, METHOD), METHOD, episode, [], settings))


def episodes(count: int):
    source = trace_source("agentic_rag_r1", WordCodec(build_tokenizer()), kinds_of("agentic_rag_r1"))
    return source.episodes("judge", count)


def test_a_session_is_judged_by_the_endpoint():
    with endpoint('{"score": 0.25}') as (url, prompts):
        answers = judged(url, "fail")
    assert set(answers) == {Verdict(0.25)}
    assert prompts[0].startswith("You judge one ")
    assert judge_metrics(answers) == {"judge/asked": float(len(answers)), "judge/missing": 0.0}


def test_what_a_missing_judgement_does_is_a_rule_of_the_run():
    with endpoint("no idea") as (url, _):
        answers = judged(url, "skip")
        assert set(answers) == {Missing("no_number")}
        assert judge_metrics(answers)["judge/missing"] == len(answers)
        with pytest.raises(InfraFaultError, match=r"judgements are missing \(no_number\)"):
            judged(url, "group")
        with pytest.raises(RuntimeError, match=r"judgements are missing \(no_number\)"):
            judged(url, "fail")


@pytest.mark.parametrize("view", ["after", "before_and_after"])
def test_the_asks_of_real_sessions_fill_the_methods_prompts(view):
    knobs = {"process": ["retrieval", "memory"], "memory_view": view}
    asks = [ask for episode in episodes(20) for ask in METHOD.asks(episode, [], knobs)]
    prompts = load_judge_prompts(METHOD, None, METHOD.judged_kinds(knobs))
    assert {ask.kind for ask in asks} == set(prompts)
    for ask in asks:
        assert placeholders(prompts[ask.kind]) == set(dict(ask.fields))


def test_a_run_without_a_judge_checks_none(capsys):
    without = config(scorer="none")
    without.agentic.reward = {"process": []}
    check_judge(without)
    assert capsys.readouterr().out == ""


def test_a_good_endpoint_is_asked_once_for_each_kind_at_each_address(capsys):
    with endpoint('{"score": 0}') as (one, prompts), endpoint("0.5") as (other, more):
        check_judge(config(urls=[one, f"{other}/v1"]))
    kinds = METHOD.judged_kinds(default_agentic("agentic_rag_r1").reward)
    assert len(prompts) == len(more) == len(kinds)
    assert all("The Seine flows through Paris." in prompt for prompt in prompts)
    said = f"verl-agentic: judge of {', '.join(kinds)}: some-judge at {one}, {other}\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            (401, {"error": "no"}),
            "answers 401: no; set the environment variable OPENAI_API_KEY to a key that it accept",
        ),
        (
            (404, {"error": "what"}),
            "answers 404: what; set agentic.judge.model, which is 'some-judge', to a model that",
        ),
        (
            "well, hm",
            "gives no verdict on a trial ask of retrieval (no_number), its model says 'well, hm'; give agentic",
        ),
        ("3", "gives no verdict on a trial ask of retrieval (out_of_range), its model says '3'; give agentic.judge.mo"),
        ((200, {"id": 1}), "answers in an unknown shape: there is no list `choices`; start a server there that speaks"),
    ],
)
def test_a_bad_endpoint_is_refused_in_one_sentence(reply, message):
    with endpoint(reply) as (url, _), pytest.raises(PreflightError, match=re.escape(message)) as caught:
        check_judge(config(urls=[url]))
    assert str(caught.value).startswith(f"chat endpoint at {url} ")
    assert "\n" not in str(caught.value)


def test_the_second_address_is_asked_too():
    with (
        endpoint("0.5") as (url, _),
        pytest.raises(PreflightError, match=r"at http://127.0.0.1:9 does not answer .*ref"),
    ):
        check_judge(config(urls=[url, "http://127.0.0.1:9"]))


def test_the_second_kind_is_asked_too():
    with endpoint("0.5", "no") as (url, _), pytest.raises(PreflightError, match="trial ask of memory "):
        check_judge(config(urls=[url]))


def test_a_judge_is_made_where_it_is_no_endpoint(tmp_path, monkeypatch, capsys):
    (tmp_path / "my_scorer.py").write_text(
        "class Scorer:\n    def __init__(self, level): self.name = f'level {level}'\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    check_judge(config(scorer="my_scorer:Scorer", options={"level": 3}))
    assert capsys.readouterr().out == "verl-agentic: judge of retrieval, memory: level 3\n"
