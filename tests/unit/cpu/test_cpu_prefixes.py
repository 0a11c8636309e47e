"""What was computed for earlier prompts serves later ones, and never one that it does not belong to."""

import asyncio
import random

import pytest
import torch

from verl_agentic.cpu.prefixes import PrefixStore

PARAMS = {"max_tokens": 9, "ignore_eos": True, "logprobs": True, "temperature": 1.0}


class Computed:
    """The tokens of each forward pass, padding included."""

    def __init__(self, model):
        self.passes = []
        model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, _, args, kwargs):
        self.passes.append(kwargs["input_ids"].numel())


def session(engine, turns, seed=3):
    """A session whose context grows by each answer and two more tokens; `turns` contexts and their outputs."""

    async def play():
        context, found = [5, 6, 7, 8], []
        for turn in range(turns):
            out = await engine.generate(context, {**PARAMS, "seed": seed + turn})
            found.append((list(context), out))
            context = [*context, *out.token_ids, 40 + turn, 50 + turn]
        return found

    return asyncio.run(play())


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_growing_session_is_the_same_and_computes_only_what_is_new(kind, engines, request):
    model = request.getfixturevalue(kind)
    plain = session(engines(model, max_kept_tokens=0), 5)
    computed = Computed(model)
    found = session(engines(model), 5)
    for (_, out), (_, expected) in zip(found, plain, strict=True):
        assert out.token_ids == expected.token_ids
        assert out.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    # the first prompt has 4 tokens; later ones add the last sampled token and the two after it
    firsts = computed.passes[::9]
    assert firsts == [4, 3, 3, 3, 3]


def test_many_sessions_at_a_time_are_as_without(llama, engines):
    rng = random.Random(1)
    starts = [[rng.randrange(2, 300) for _ in range(rng.randrange(1, 30))] for _ in range(12)]
    starts += [starts[0], [*starts[0][:-1], 9], [*starts[1], 7]]

    def play(engine):
        async def one(number, context):
            outs = []
            for turn in range(4):
                out = await engine.generate(context, {**PARAMS, "seed": 100 * number + turn, "max_tokens": 3 + turn})
                outs.append(out)
                context = [*context, *out.token_ids, 17, number + 2]
            return outs

        async def every():
            return await asyncio.gather(*(one(n, s) for n, s in enumerate(starts)))

        return asyncio.run(every())

    plain, kept, little = (
        play(engines(llama, max_kept_tokens=0)),
        play(engines(llama)),
        play(engines(llama, max_kept_tokens=40)),
    )
    for other in (kept, little):
        for expected, found in zip(plain, other, strict=True):
            for a, b in zip(expected, found, strict=True):
                assert a.token_ids == b.token_ids
                assert a.log_probs == pytest.approx(b.log_probs, abs=1e-4)


def test_an_edited_context_takes_only_what_it_shares(llama, engines):
    engine, computed = engines(llama), Computed(llama)
    (first, _), (second, _), _ = session(engine, 3)
    start = len(computed.passes)
    # goes back to the second context and on with something else: everything but the last two tokens is known
    edited = [*second, 200, 201]
    found = asyncio.run(engine.generate(edited, {**PARAMS, "seed": 9}))
    assert computed.passes[start] == 2
    plain = asyncio.run(engines(llama, max_kept_tokens=0).generate(edited, {**PARAMS, "seed": 9}))
    assert found.token_ids == plain.token_ids
    # one that differs in its first token shares nothing
    start = len(computed.passes)
    changed = [first[0] + 1, *second[1:]]
    found = asyncio.run(engine.generate(changed, {**PARAMS, "seed": 9}))
    assert computed.passes[start] == len(changed)
    plain = asyncio.run(engines(llama, max_kept_tokens=0).generate(changed, {**PARAMS, "seed": 9}))
    assert found.log_probs == pytest.approx(plain.log_probs, abs=1e-4)


def test_after_a_weight_update_nothing_old_is_served(llama, engines):
    engine = engines(llama)
    (_, before), (context, _) = session(engine, 2)
    torch.manual_seed(1)
    changed = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in llama.state_dict().items()}
    asyncio.run(engine.update_weights(changed.items(), version=1))
    after = asyncio.run(engine.generate(context, {**PARAMS, "seed": 4}))
    fresh = asyncio.run(engines(llama, max_kept_tokens=0).generate(context, {**PARAMS, "seed": 4}))
    assert after.token_ids == fresh.token_ids
    assert after.log_probs == pytest.approx(fresh.log_probs, abs=1e-6)
    again = asyncio.run(engine.generate([5, 6, 7, 8], {**PARAMS, "seed": 3}))
    assert again.log_probs != pytest.approx(before.log_probs, abs=1e-4)


def test_sleep_gives_what_is_kept_back(llama, engines):
    engine, computed = engines(llama), Computed(llama)
    context = session(engine, 2)[-1][0]

    async def nap():
        await engine.sleep()
        await engine.wake_up()
        return await engine.generate(context, {**PARAMS, "seed": 4})

    start = len(computed.passes)
    asyncio.run(nap())
    assert computed.passes[start] == len(context)


def states(tokens):
    return [(torch.tensor(tokens), torch.tensor(tokens))]


def test_the_longest_end_that_fits_is_found():
    store = PrefixStore(100)
    store.keep([1, 2, 3, 4], [2, 4], states([1, 2, 3, 4]))
    assert store.longest([1, 2, 3, 4, 5])[0] == 4
    assert store.longest([1, 2, 3, 4])[0] == 2  # the last token is always computed
    assert store.longest([1, 2, 9, 9])[0] == 2
    assert store.longest([2, 2, 3, 4, 5])[0] == 0
    assert store.longest([1])[0] == 0
    assert store.longest([1, 2, 3, 4, 5])[1][0][0].tolist() == [1, 2, 3, 4]


def test_the_least_recently_used_context_leaves():
    store = PrefixStore(8)
    store.keep([1, 2, 3], [3], states([1, 2, 3]))
    store.keep([4, 5, 6], [3], states([4, 5, 6]))
    assert store.longest([1, 2, 3, 9])[0] == 3  # used: now the other is older
    store.keep([7, 8, 9], [3], states([7, 8, 9]))
    assert [store.longest([first, first + 1, first + 2, 9])[0] for first in (1, 4, 7)] == [3, 0, 3]
    store.keep([1] * 9, [9], states([1] * 9))  # more than fits at all
    assert store.longest([1] * 10)[0] == 0
    store.forget()
    assert store.longest([7, 8, 9, 9])[0] == 0


def test_equal_contexts_count_once():
    store = PrefixStore(6)
    for _ in range(5):
        store.keep([1, 2, 3], [1, 3], states([1, 2, 3]))
    store.keep([4, 5, 6], [3], states([4, 5, 6]))
    assert store.longest([1, 2, 3, 9])[0] == 3
    assert store.longest([4, 5, 6, 9])[0] == 3
