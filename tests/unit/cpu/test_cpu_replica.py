"""Replica, server actor and adapter together in a real ray, called the way verl calls them."""

import asyncio

import pytest
import ray
import torch
from omegaconf import OmegaConf
from verl.workers.config import CheckpointEngineConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout

from verl_agentic.cpu.replica import EmbeddedReplica, EmbeddedRollout

PROMPT = [5, 6, 7]
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, "logprobs": True}


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def rollout(cluster, llama, tokenizer, tmp_path, monkeypatch):
    """(replica, adapter) on a saved tiny llama, weights sent in more than one bucket."""
    llama.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setenv("RANK", "0")
    buckets = CheckpointEngineConfig(update_weights_bucket_megabytes=0)
    config = RolloutConfig(
        name="hf", tensor_model_parallel_size=1, dtype="float32", response_length=9, checkpoint_engine=buckets
    )
    model = OmegaConf.create(
        {
            "_target_": "verl.workers.config.HFModelConfig",
            "path": str(tmp_path),
            "override_config": {"attn_implementation": "sdpa"},
        }
    )
    replica = EmbeddedReplica(0, config, model, gpus_per_node=1)
    asyncio.run(replica.launch_servers())
    yield replica, EmbeddedRollout(config, model, None)
    ray.kill(replica.server_handle)


@pytest.mark.slow
def test_a_step_as_verl_drives_it(rollout, llama):
    replica, adapter = rollout
    assert isinstance(adapter, BaseRollout)
    torch.manual_seed(2)
    changed = {name: torch.randn_like(value) * 0.3 for name, value in llama.state_dict().items()}
    changed["lm_head.weight"] = changed["model.embed_tokens.weight"]

    def generate(params, request_id="a"):
        return replica.server_handle.generate.remote(
            request_id=request_id, prompt_ids=PROMPT, sampling_params=params, image_data=None, video_data=None
        )

    async def scenario():
        before = await generate(GREEDY)
        default = await generate({"temperature": 0, "ignore_eos": True})
        await replica.sleep()
        held = generate(GREEDY)
        await adapter.resume(tags=["weights"])
        await adapter.update_weights(iter(changed.items()), global_steps=3, peft_config=None, base_sync_done=True)
        await adapter.resume(tags=["kv_cache"])
        after = await held
        await replica.clear_kv_cache()
        long = generate({"max_tokens": 4000, "ignore_eos": True}, "long")
        await asyncio.sleep(0.2)
        ended = await replica.abort_all_requests()
        await replica.resume_generation()
        return before, default, after, ended, await long, await replica.abort_request("nobody")

    before, default, after, ended, long, nobody = asyncio.run(scenario())
    assert (before.stop_reason, before.extra_fields["finish_reason"]) == ("completed", "length")
    assert before.extra_fields["global_steps"] is None
    assert len(default.token_ids) == 9
    llama.load_state_dict(changed)
    with torch.no_grad():
        logits = llama(torch.tensor([PROMPT + after.token_ids])).logits[0, 2:-1]
    assert after.token_ids == logits.argmax(-1).tolist() != before.token_ids
    wanted = torch.log_softmax(logits, -1).max(-1).values.tolist()
    assert after.log_probs == pytest.approx(wanted, abs=1e-4)
    assert after.extra_fields["global_steps"] == 3
    assert ended == {"aborted_count": 1, "request_ids": ["long"]}
    assert (long.stop_reason, long.extra_fields["finish_reason"]) == ("aborted", "abort")
    assert nobody == {"aborted": False, "request_id": "nobody"}


@pytest.mark.slow
def test_errors_reach_the_caller_through_ray(rollout):
    replica, adapter = rollout
    server = replica.server_handle

    async def scenario():
        with pytest.raises(ValueError, match="unknown sampling parameter 'temprature'; did you mean 'temperature'"):
            await server.generate.remote(request_id="a", prompt_ids=PROMPT, sampling_params={"temprature": 1})
        with pytest.raises(ValueError, match="carries images, video or audio"):
            await server.generate.remote(request_id="a", prompt_ids=PROMPT, sampling_params={}, image_data=[1])
        with pytest.raises(KeyError, match="the rollout model has no weight 'other'"):
            await adapter.update_weights(iter([("other", torch.zeros(1))]), global_steps=1)
        with pytest.raises(NotImplementedError, match="takes full tensors"):
            await adapter.update_weights(iter([]), wire_format="delta_flush")

    asyncio.run(scenario())
