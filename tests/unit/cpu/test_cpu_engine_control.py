"""Aborting, pausing, sleeping, new weights, failures: what happens to the request concerned and to its neighbours."""

import asyncio
import threading

import pytest
import torch

from verl_agentic.cpu.engine import Engine, EngineClosedError
from verl_agentic.cpu.sampling_params import SamplingParamsError

PROMPT = [5, 6, 7, 8]
LONG = {"max_tokens": 4000, "ignore_eos": True, "seed": 11, "logprobs": True}
SHORT = {"max_tokens": 12, "ignore_eos": True, "seed": 12}


class Steps:
    """Counts a model's forward passes and lets a test wait for the n-th."""

    def __init__(self, model, target):
        self._left = target
        self._reached = threading.Event()
        model.register_forward_hook(self._count)

    def _count(self, *_):
        self._left -= 1
        if self._left <= 0:
            self._reached.set()

    async def reached(self):
        assert await asyncio.to_thread(self._reached.wait, 60)


def test_an_aborted_request_returns_its_tokens_and_neighbours_finish(llama, engines):
    engine, steps = engines(llama), Steps(llama, 6)

    async def scenario():
        long = asyncio.ensure_future(engine.generate(PROMPT, LONG, "long"))
        short = asyncio.ensure_future(engine.generate(PROMPT, SHORT, "short"))
        await steps.reached()
        aborted = await engine.abort("long")
        return aborted, await long, await short, await engine.abort("long")

    aborted, long, short, again = asyncio.run(scenario())
    assert (aborted, again) == (True, False)
    assert long.finish_reason == "abort"
    assert 0 < len(long.token_ids) == len(long.log_probs) < 4000
    assert (short.finish_reason, len(short.token_ids)) == ("length", 12)


def test_a_request_resumed_with_its_seed_continues_as_if_never_interrupted(llama, engines):
    engine, steps = engines(llama), Steps(llama, 6)
    params = {**LONG, "max_tokens": 300}

    async def scenario():
        first = asyncio.ensure_future(engine.generate(PROMPT, params))
        await steps.reached()
        await engine.abort_all()
        held = asyncio.ensure_future(engine.generate([*PROMPT, *(await first).token_ids], {**params, "max_tokens": 5}))
        await asyncio.sleep(0.02)
        assert not held.done()
        await engine.resume()
        return await first, await held, await engine.generate(PROMPT, params)

    first, rest, whole = asyncio.run(scenario())
    assert first.finish_reason == "abort"
    taken = len(first.token_ids)
    assert whole.token_ids[: taken + 5] == first.token_ids + rest.token_ids


def test_abort_all_names_those_it_ended_and_can_refuse_later_ones(llama, engines):
    engine, steps = engines(llama, max_batch=2), Steps(llama, 4)

    async def scenario():
        running = [asyncio.ensure_future(engine.generate(PROMPT, LONG, f"r{i}")) for i in range(4)]
        await steps.reached()
        ended = await engine.abort_all(reject=True)
        refused = await engine.generate(PROMPT, SHORT)
        await engine.resume()
        return ended, await asyncio.gather(*running), refused, await engine.generate(PROMPT, SHORT)

    ended, outputs, refused, later = asyncio.run(scenario())
    assert sorted(ended) == ["r0", "r1", "r2", "r3"]
    assert [output.finish_reason for output in outputs] == ["abort"] * 4
    assert [bool(output.token_ids) for output in outputs] == [True, True, False, False]
    assert (refused.finish_reason, refused.token_ids) == ("abort", [])
    assert later.finish_reason == "length"


def test_a_cancelled_caller_frees_its_place(llama, engines):
    engine, steps = engines(llama, max_batch=1), Steps(llama, 4)

    async def scenario():
        long = asyncio.ensure_future(engine.generate(PROMPT, LONG))
        await steps.reached()
        long.cancel()
        return await engine.generate(PROMPT, SHORT)

    assert len(asyncio.run(scenario()).token_ids) == 12


def test_new_weights_wait_for_running_requests_and_serve_later_ones(llama, engines):
    engine = engines(llama)
    greedy = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
    torch.manual_seed(1)
    weights = [(name, torch.randn_like(value) * 0.3) for name, value in llama.state_dict().items()]

    async def scenario():
        before = asyncio.ensure_future(engine.generate(PROMPT, greedy))
        await steps.reached()
        update = asyncio.ensure_future(engine.update_weights(weights[:4], 7, last=False))
        after = asyncio.ensure_future(engine.generate(PROMPT, greedy))
        await update
        assert not after.done()
        await engine.update_weights(weights[4:], 7)
        return await before, await after

    old = asyncio.run(engine.generate(PROMPT, greedy)).token_ids
    steps = Steps(llama, 3)
    before, after = asyncio.run(scenario())
    assert (before.token_ids, before.weight_version) == (old, None)
    assert (len(after.token_ids), after.weight_version) == (60, 7)
    assert after.token_ids != old
    fresh = Engine(llama)
    assert asyncio.run(fresh.generate(PROMPT, greedy)).token_ids == after.token_ids
    fresh.close()


@pytest.mark.parametrize(
    ("name", "shape", "error"),
    [("model.layers.9.mlp.up_proj.weight", (96, 64), KeyError), ("model.norm.weight", (3,), ValueError)],
)
def test_weights_of_another_model_are_refused_and_change_nothing(llama, engines, name, shape, error):
    engine = engines(llama)
    old = asyncio.run(engine.generate(PROMPT, SHORT))
    good = ("lm_head.weight", torch.zeros_like(llama.lm_head.weight))
    with pytest.raises(error, match=name.replace(".", r"\.")):
        asyncio.run(engine.update_weights([good, (name, torch.zeros(shape))], 1))
    assert asyncio.run(engine.generate(PROMPT, SHORT)) == old


def test_sleep_holds_requests_until_it_wakes(llama, engines):
    engine = engines(llama)

    async def scenario():
        first = await engine.generate(PROMPT, SHORT)
        await engine.sleep()
        held = asyncio.ensure_future(engine.generate(PROMPT, SHORT))
        await asyncio.sleep(0.02)
        assert not held.done()
        await engine.wake_up()
        return first, await held

    first, held = asyncio.run(scenario())
    assert first == held


def test_clearing_the_cache_waits_and_changes_nothing(llama, engines):
    engine, steps = engines(llama), Steps(llama, 3)

    async def scenario():
        running = asyncio.ensure_future(engine.generate(PROMPT, SHORT))
        await steps.reached()
        await engine.clear_cache()
        return await running, await engine.generate(PROMPT, SHORT)

    first, again = asyncio.run(scenario())
    assert first == again


def test_bad_requests_are_told_and_neighbours_do_not_notice(llama, engines, generate):
    engine = engines(llama, max_model_len=30)
    alone = generate(engine, (PROMPT, SHORT))[0]
    good, unknown, empty, long, token, tag = generate(
        engine,
        (PROMPT, SHORT),
        (PROMPT, {"max_token": 3}),
        ([], SHORT),
        ([5] * 30, SHORT),
        ([5, 320], SHORT),
        (PROMPT, {"stop": "</search>"}),
    )
    assert good == alone
    assert isinstance(unknown, SamplingParamsError)
    assert str(unknown) == "unknown sampling parameter 'max_token'; did you mean 'max_tokens'?"
    advice = "cannot be continued in a context of 30 tokens: it must have between 1 and 29"
    assert str(empty) == f"a prompt of 0 tokens {advice}"
    assert str(long) == f"a prompt of 30 tokens {advice}"
    assert str(token) == "token 320 is outside the model's vocabulary of 320 tokens"
    assert str(tag) == "stop strings need a tokenizer: give one to the engine, or use stop_token_ids"


def test_a_failing_prefill_hits_only_its_own_request(llama, engines, generate):
    def refuse(module, args, kwargs):
        if (kwargs["input_ids"] == 13).any():
            raise RuntimeError("thirteen")

    llama.register_forward_pre_hook(refuse, with_kwargs=True)
    params = {**SHORT, "top_k": 1, "stop_token_ids": [13]}
    outputs = generate(engines(llama), *[([token, 20], params) for token in (11, 12, 13, 14)])
    assert [isinstance(output, RuntimeError) for output in outputs] == [False, False, True, False]


def test_a_failing_step_is_reported_and_the_engine_goes_on(llama, engines, generate):
    engine = engines(llama)
    old = generate(engine, (PROMPT, SHORT))[0]

    def refuse(module, args, kwargs):
        if kwargs["input_ids"].shape[1] == 1:
            raise RuntimeError("out of memory")

    handle = llama.register_forward_pre_hook(refuse, with_kwargs=True)
    outputs = generate(engine, (PROMPT, SHORT), (PROMPT, LONG))
    assert [str(output) for output in outputs] == ["out of memory"] * 2
    handle.remove()
    assert generate(engine, (PROMPT, SHORT))[0] == old


def test_diverged_weights_are_named(llama, engines, generate):
    with torch.no_grad():
        llama.model.norm.weight.fill_(torch.nan)
    (error,) = generate(engines(llama), (PROMPT, SHORT))
    assert isinstance(error, FloatingPointError)
    assert "its weights have diverged; lower the learning rate" in str(error)


def test_a_closed_engine_lets_nobody_wait(llama, hold):
    engine, held = Engine(llama), hold(llama)
    weights = list(llama.state_dict().items())

    async def scenario():
        first = asyncio.ensure_future(engine.generate(PROMPT, LONG))
        await held.reached()
        calls = [engine.generate(PROMPT, LONG), engine.sleep(), engine.drain(), engine.clear_cache(), engine.wake_up()]
        calls += [engine.update_weights(weights, 1), engine.abort("x"), engine.abort_all(), engine.resume()]
        waiting = [first, *map(asyncio.ensure_future, calls)]
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(engine.close))
        while await refused(engine.drain()) is not True:
            await asyncio.sleep(0.01)
        held.release()
        await closing
        outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
        assert [type(outcome) for outcome in outcomes] == [EngineClosedError] * 10
        with pytest.raises(EngineClosedError):
            await engine.generate(PROMPT, SHORT)

    asyncio.run(scenario())
    engine.close()


async def refused(call):
    """Whether a call is refused at once; None where it waits."""
    waiting = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    return isinstance(waiting.exception(), EngineClosedError) if waiting.done() else None


@pytest.mark.parametrize("idle", ["sleep", "drain", "clear_cache", "update_weights"])
@pytest.mark.parametrize("end", ["abort", "abort_all", "cancel"])
def test_aborts_overtake_what_waits_for_an_idle_batch(llama, engines, hold, idle, end):
    engine, held = engines(llama), hold(llama)
    arguments = (llama.state_dict().items(), 1) if idle == "update_weights" else ()

    async def scenario():
        running = asyncio.ensure_future(engine.generate(PROMPT, LONG, "long"))
        await held.reached()
        waiting = asyncio.ensure_future(getattr(engine, idle)(*arguments))
        await asyncio.sleep(0)
        if end == "cancel":
            running.cancel()
            ended = asyncio.ensure_future(asyncio.sleep(0))
        else:
            ended = asyncio.ensure_future(getattr(engine, end)(*["long"] * (end == "abort")))
        await asyncio.sleep(0)
        held.release()
        await waiting
        return await ended, *await asyncio.gather(running, return_exceptions=True)

    ended, output = asyncio.run(scenario())
    assert ended == {"abort": True, "abort_all": ["long"], "cancel": None}[end]
    assert held.passes == 3
    if end == "cancel":
        assert isinstance(output, asyncio.CancelledError)
    else:
        assert (output.finish_reason, len(output.token_ids)) == ("abort", 3)
