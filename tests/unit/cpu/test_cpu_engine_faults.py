"""Faults of numbers, memory, weights or a caller's loop: only those concerned notice, and the engine goes on."""

import asyncio
import random

import pytest
import torch

from verl_agentic.cpu import kv_cache
from verl_agentic.cpu.batch import Batch
from verl_agentic.cpu.request import Request
from verl_agentic.cpu.sampling_params import SamplingParams, SamplingParamsError

PROMPT = [5, 6, 7, 8]
SHORT = {"max_tokens": 12, "ignore_eos": True, "seed": 12}
NAN_TOKEN = 9


def request(prompt, **raw):
    params = SamplingParams.parse({"seed": 3, "max_tokens": 12, **raw})
    return Request("r", prompt, params, frozenset(), params.max_tokens, deliver=lambda _: None)


def decode(batch, *joining):
    """Token ids of requests decoded to their end."""
    batch.join(joining)
    while batch.active:
        batch.step()
    return [r.token_ids for r in joining]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (0, 2, 1)])
def test_one_nan_embedding_fails_only_requests_with_its_token(qwen2, engines, generate, order):
    greedy = {**SHORT, "max_tokens": 60, "temperature": 0}
    prompts = [[5] * 20 + [NAN_TOKEN] + [5] * 20, [5] * 300, PROMPT]
    alone = [generate(engines(qwen2), (prompt, greedy))[0] for prompt in prompts]
    with torch.no_grad():
        qwen2.model.embed_tokens.weight[NAN_TOKEN] = torch.nan
    assert NAN_TOKEN not in alone[1].token_ids + alone[2].token_ids
    outputs = generate(engines(qwen2), *[(prompts[index], greedy) for index in order])
    for index, output in zip(order, outputs, strict=True):
        assert isinstance(output, FloatingPointError) if index == 0 else output == alone[index]


def test_good_weights_after_diverged_ones_serve_every_request(llama, engines, generate):
    engine = engines(llama)
    good = {name: value.clone() for name, value in llama.state_dict().items()}
    requests = [([5] * 150, SHORT), (PROMPT, SHORT), ([6] * 80, SHORT)]
    alone = [generate(engine, each)[0].token_ids for each in requests]
    asyncio.run(engine.update_weights([(name, torch.full_like(v, torch.nan)) for name, v in good.items()], 1))
    failed = generate(engine, *[([5] * 200, SHORT)] * 3)
    assert [type(error) for error in failed] == [FloatingPointError] * 3
    asyncio.run(engine.update_weights(good.items(), 2))
    assert [output.token_ids for output in generate(engine, *requests)] == alone


def test_nothing_of_earlier_requests_is_left_in_a_row(llama):
    batch, order = Batch(llama, None, 0), random.Random(1)
    for _ in range(40):
        batch.join([request([5] * order.randint(1, 150), max_tokens=order.randint(2, 60)) for _ in range(2)])
        for _ in range(order.randint(1, 9)):
            if batch.active:
                batch.step()
        for row, active in enumerate(batch.active):
            for layer in batch._cache.layers:  # the last token is drawn and not stored yet
                assert not layer.keys[row, active.length - 1 :].any()
                assert not layer.values[row, active.length - 1 :].any()
                assert layer.keys[row, : active.length - 1].any(dim=(1, 2)).all()


@pytest.fixture
def short_of_memory(monkeypatch):
    """`short_of_memory(n)`: the n-th growth of a layer's memory from now on fails, once."""

    def start(failing):
        counts = iter(range(1, 1000))

        def grown(*args):
            if next(counts) == failing:
                raise MemoryError("no memory")
            return original(*args)

        monkeypatch.setattr(kv_cache, "_grown", grown)

    original = kv_cache._grown
    return start


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
@pytest.mark.parametrize("prompt", [[7] * 100, [7] * 5])
def test_a_failed_growth_of_memory_leaves_running_requests_alone(llama, short_of_memory, failing, prompt):
    (alone,), (other,) = decode(Batch(llama, None, 0), request(PROMPT)), decode(Batch(llama, None, 0), request(prompt))
    batch, running = Batch(llama, None, 0), request(PROMPT)
    batch.join([running])
    short_of_memory(failing)
    with pytest.raises(MemoryError):
        batch.join([request(prompt)])
    batch.step()
    assert decode(batch, later := request(prompt)) == [other]
    assert (running.token_ids, later.token_ids) == (alone, other)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_an_engine_serves_on_after_a_failed_growth_of_memory(llama, engines, generate, short_of_memory, failing):
    engine, long = engines(llama), ([7] * 100, SHORT)
    alone = generate(engines(llama), long)[0]
    generate(engine, (PROMPT, SHORT))
    short_of_memory(failing)
    assert isinstance(generate(engine, long)[0], MemoryError)
    assert generate(engine, long) == [alone]
    assert generate(engine, long, long) == [alone, alone]


def test_a_failing_draw_leaves_nothing_in_the_batch(llama):
    (alone,) = decode(Batch(llama, None, 0), request(PROMPT))
    batch, running = Batch(llama, None, 0), request(PROMPT)
    batch.join([running])
    with pytest.raises(IndexError):
        batch.join([request(PROMPT), request(PROMPT, stop_token_ids=[5000], min_tokens=2)])
    assert batch.active == [running]
    while batch.active:
        batch.step()
    assert running.token_ids == alone


def test_an_end_token_outside_the_vocabulary_hurts_nobody(llama, engines, generate):
    llama.generation_config.eos_token_id = [1, 320]
    engine = engines(llama)
    late = {**SHORT, "ignore_eos": False, "min_tokens": 12}
    outputs = generate(engine, (PROMPT, SHORT), (PROMPT, late), (PROMPT, SHORT))
    assert [len(output.token_ids) for output in outputs] == [12] * 3


def test_a_request_that_forbids_every_token_is_told(llama, engines, generate):
    engine = engines(llama)
    (alone,) = generate(engine, (PROMPT, SHORT))
    every = {**SHORT, "stop_token_ids": list(range(320)), "min_tokens": 2}
    good, error, also_good = generate(engine, (PROMPT, SHORT), (PROMPT, every), (PROMPT, SHORT))
    assert good == also_good == alone
    assert isinstance(error, SamplingParamsError)
    assert str(error).startswith("every token the model can produce is forbidden at position 4 of request request-")
    assert str(error).endswith("by min_tokens=2: ask for fewer stop_token_ids or a smaller min_tokens")


def changed(model):
    return [(name, value + 0.1) for name, value in model.state_dict().items()]


def test_a_partial_update_in_one_bucket_is_refused_and_changes_nothing(llama, engines, generate):
    engine = engines(llama)
    old = generate(engine, (PROMPT, SHORT))[0]
    with pytest.raises(ValueError, match="did not come with the update, the first of them 'model"):
        asyncio.run(engine.update_weights(changed(llama)[:3], 9))
    assert generate(engine, (PROMPT, SHORT))[0] == old
    assert engine.weight_version is None


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight"])
def test_a_tied_weight_may_come_under_one_of_its_names(llama, engines, name):
    engine = engines(llama)
    asyncio.run(engine.update_weights([(n, value) for n, value in changed(llama) if n != name], 9))
    assert engine.weight_version == 9


@pytest.mark.parametrize("second", ["unfinished", "unknown", "misshapen"])
def test_no_request_is_served_by_weights_of_two_versions(llama, engines, generate, second):
    engine, new = engines(llama), changed(llama)
    rest = {
        "unfinished": new[3:-3],
        "unknown": [*new[3:], ("other", torch.zeros(1))],
        "misshapen": [*new[3:], ("model.norm.weight", torch.zeros(1))],
    }

    async def scenario():
        await engine.update_weights(new[:3], 9, last=False)
        held = asyncio.ensure_future(engine.generate(PROMPT, SHORT))
        with pytest.raises((KeyError, ValueError)):
            await engine.update_weights(rest[second], 9)
        return await asyncio.gather(held, engine.generate(PROMPT, SHORT), return_exceptions=True)

    for error in asyncio.run(scenario()):
        assert isinstance(error, RuntimeError)
        assert str(error).startswith("the rollout model holds weights of two versions, because an update failed")
        assert str(error).endswith("send all weights again")
    with pytest.raises(
        ValueError, match="did not come"
    ):  # buckets before a failure do not count towards a later update
        asyncio.run(engine.update_weights(new[3:], 9))
    asyncio.run(engine.update_weights(new, 9))
    (output,) = generate(engine, (PROMPT, SHORT))
    assert (len(output.token_ids), output.weight_version) == (12, 9)


def test_a_loop_that_closes_under_its_request_harms_no_other(llama, engines, hold):
    engine = engines(llama)
    alone = asyncio.run(engine.generate(PROMPT, SHORT))
    held, lost = hold(llama), asyncio.new_event_loop()

    async def leave():
        running = asyncio.ensure_future(engine.generate(PROMPT, {**SHORT, "max_tokens": 8}))
        await held.reached()
        return running

    running = lost.run_until_complete(leave())
    lost.close()
    lost.is_closed = lambda: False  # as when it closes just after the decode thread has looked

    async def neighbour():
        call = asyncio.ensure_future(engine.generate(PROMPT, SHORT))
        await asyncio.sleep(0)
        held.release()  # the lost request ends while this one runs
        return await asyncio.wait_for(call, 60)

    assert asyncio.run(neighbour()) == alone
    assert not running.done()
    del lost.is_closed


def test_a_caller_cancelled_after_the_close_is_cancelled(llama, engines, hold):
    engine, held = engines(llama), hold(llama)

    async def scenario():
        running = asyncio.ensure_future(engine.generate(PROMPT, {**SHORT, "max_tokens": 4000}))
        await held.reached()
        held.release()
        engine.close()  # on the loop's own thread: the request's end has not reached its caller yet
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(scenario())


def test_a_request_handed_over_after_a_refusal_began_is_refused_too(llama, engines):
    engine, outcomes = engines(llama), []
    late = request(PROMPT)
    late.deliver = outcomes.append

    async def scenario():
        await engine.abort_all(reject=True)
        engine._thread.enqueue(late)  # as by a caller who was past every check when the refusal began
        await engine.drain()

    asyncio.run(scenario())
    assert [(output.finish_reason, output.token_ids) for output in outcomes] == [("abort", [])]
