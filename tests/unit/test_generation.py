"""The session's sampler over verl's rollout client: seeds, what it remembers, and what a failure is."""

import asyncio
from functools import partial
from types import SimpleNamespace

import pytest

from verl_agentic.bridge.agent_loop import Generation
from verl_agentic.core.outcomes import InfraFaultError
from verl_agentic.core.seeds import request_seed


class Server:
    """Stands at the LLM boundary: answers from a list, an exception raises."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def generate(self, **request):
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(**answer)


def output(ids, stop_reason="completed", **extra):
    return {"token_ids": ids, "log_probs": [-1.0] * len(ids), "stop_reason": stop_reason, "extra_fields": extra}


def test_each_call_has_its_own_seed_and_all_ids_are_remembered():
    server = Server(
        output([1, 2], finish_reason="stop", min_global_steps=4, max_global_steps=4),
        output([3], max_global_steps=5, min_global_steps=5),
    )
    generation = Generation(server, {"temperature": 0.5}, partial(request_seed, 1, 2, "item", 3))

    async def talk():
        return [await generation([9], {"max_tokens": 7}), await generation([9, 1, 2], {"max_tokens": 6})]

    samples = asyncio.run(talk())
    assert [s.token_ids for s in samples] == [[1, 2], [3]]
    assert [s.finish_reason for s in samples] == ["stop", None]
    assert generation.sampled == [1, 2, 3]
    assert [r["sampling_params"]["seed"] for r in server.asked] == [request_seed(1, 2, "item", 3, t) for t in (0, 1)]
    assert server.asked[0]["sampling_params"]["temperature"] == 0.5
    assert server.asked[0]["request_id"] == server.asked[1]["request_id"]
    assert (generation.extra_fields["min_global_steps"], generation.extra_fields["max_global_steps"]) == (4, 5)


def test_an_aborted_request_is_told():
    generation = Generation(Server(output([1], stop_reason="aborted")), {}, lambda turn: turn)
    assert asyncio.run(generation([9], {})).finish_reason == "abort"


def test_a_failing_rollout_server_is_a_fault_of_the_infrastructure():
    generation = Generation(Server(RuntimeError("actor died\nlong trace")), {}, lambda turn: turn)
    with pytest.raises(InfraFaultError, match=r"^rollout: RuntimeError: actor died$"):
        asyncio.run(generation([9], {}))
