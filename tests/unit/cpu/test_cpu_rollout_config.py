"""What the embedded rollout refuses at start, what it passes to its server, and how its answers look to verl."""

import pickle

import pytest
import torch
from omegaconf import OmegaConf
from transformers import AutoConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, T5Config
from verl.workers.config import RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from verl_agentic.cpu.model_checks import check_architecture, context_length, end_token_ids
from verl_agentic.cpu.replica import EmbeddedReplica, server_config
from verl_agentic.cpu.reply import Reply
from verl_agentic.cpu.request import GenerationOutput
from verl_agentic.cpu.rollout_config import EngineSettings, check_rollout_config


def rollout(**settings):
    return RolloutConfig(**{"name": "hf", "tensor_model_parallel_size": 1, "dtype": "float32", **settings})


def test_a_plain_configuration_passes():
    check_rollout_config(rollout(), OmegaConf.create({"path": "model", "lora_rank": 0}))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"tensor_model_parallel_size": 2}, "rollout.tensor_model_parallel_size=2"),
        ({"data_parallel_size": 2}, "rollout.data_parallel_size=2"),
        ({"pipeline_model_parallel_size": 2}, "rollout.pipeline_model_parallel_size=2"),
        ({"quantization": "fp8"}, "rollout.quantization=fp8"),
        ({"qat": {"enable": True}}, "rollout.qat.enable=True"),
        ({"enable_rollout_routing_replay": True}, "rollout.enable_rollout_routing_replay=True"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(settings, named):
    with pytest.raises(NotImplementedError, match=rf"the rollout 'hf' cannot honour actor_rollout_ref\.{named}: "):
        check_rollout_config(rollout(**settings), {})


def test_adapters_are_refused_unless_merged():
    with pytest.raises(NotImplementedError, match=r"set actor_rollout_ref\.model\.lora\.merge=True"):
        check_rollout_config(rollout(), {"lora_rank": 8})
    check_rollout_config(rollout(), {"lora_rank": 8, "lora": {"merge": True}})


def test_engine_settings():
    assert EngineSettings.parse({"threads": 2}).threads == 2
    with pytest.raises(ValueError, match=r"engine_kwargs\.hf\.thread; did you mean 'threads'"):
        EngineSettings.parse({"thread": 2})
    with pytest.raises(ValueError, match=r"engine_kwargs\.hf\.threads=0 must be a positive integer"):
        EngineSettings.parse({"threads": 0})


@pytest.fixture
def folder(llama, tokenizer, tmp_path):
    llama.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def model_settings(folder):
    override = {"attn_implementation": "sdpa", "rope_theta": 5.0}
    return OmegaConf.create(
        {"_target_": "verl.workers.config.HFModelConfig", "path": folder, "override_config": override}
    )


def test_the_server_is_told_what_verl_was_told(folder):
    config = server_config(rollout(response_length=9, max_num_seqs=5), model_settings(folder))
    assert (config.model_path, config.dtype) == (folder, torch.float32)
    assert (config.response_length, config.max_num_seqs, config.settings.threads) == (9, 5, 1)
    assert isinstance(AutoConfig.from_pretrained(folder), type(config.hf_config))
    assert config.hf_config.rope_theta == 5.0
    assert pickle.loads(pickle.dumps(config)).tokenizer.eos_token_id == 1


def test_the_replica_refuses_at_construction(folder):
    settings = model_settings(folder)
    assert EmbeddedReplica(0, rollout(), settings, gpus_per_node=1).max_concurrency >= 1000
    with pytest.raises(NotImplementedError, match="quantization"):
        EmbeddedReplica(0, rollout(quantization="fp8"), settings, gpus_per_node=1)


@pytest.mark.parametrize(("finish", "stop"), [("stop", "completed"), ("length", "completed"), ("abort", "aborted")])
def test_a_reply_arrives_as_verls_token_output(finish, stop):
    output = GenerationOutput([4, 5], [-0.5, -1.0], finish, weight_version=3)
    reply = pickle.loads(pickle.dumps(Reply(output)))
    assert isinstance(reply, TokenOutput)
    assert (reply.token_ids, reply.log_probs, reply.stop_reason) == ([4, 5], [-0.5, -1.0], stop)
    assert reply.extra_fields == {"global_steps": 3, "finish_reason": finish}


def test_end_tokens_are_gathered_from_all_who_name_them(llama, tokenizer):
    llama.generation_config.eos_token_id = [7, 8]
    llama.config.eos_token_id = 9
    assert end_token_ids(llama, tokenizer) == {7, 8, 9, 1}
    llama.generation_config.eos_token_id = [7, 319, 320, -1]  # the vocabulary ends at 319
    assert end_token_ids(llama, tokenizer) == {7, 319, 9, 1}
    llama.config.eos_token_id = llama.generation_config.eos_token_id = None
    assert end_token_ids(llama, None) == frozenset()


@pytest.mark.parametrize("limit", ["max_batch", "max_prefill_tokens", "threads"])
def test_limits_under_which_no_request_would_be_served_are_refused(llama, engines, limit):
    with pytest.raises(ValueError, match=f"{limit}=0 must be at least 1: the engine could serve no request"):
        engines(llama, **{limit: 0})


def test_context_length(llama):
    assert context_length(llama.config, None) == 4096
    assert context_length(llama.config, 100) == 100
    with pytest.raises(ValueError, match="max_model_len=5000 must be at least 2 and at most the model's own 4096"):
        context_length(llama.config, 5000)


def test_models_the_cache_cannot_serve_are_refused(llama):
    check_architecture(llama, 4096)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    windowed = MistralForCausalLM(MistralConfig(**sizes, num_key_value_heads=2, vocab_size=50, sliding_window=64))
    check_architecture(windowed, 64)
    with pytest.raises(
        NotImplementedError, match=r"a sliding window of 64 tokens: set rollout\.max_model_len to at most 64"
    ):
        check_architecture(windowed, 65)
    encoder = LlamaForCausalLM(llama.config)
    encoder.config = T5Config()
    with pytest.raises(NotImplementedError, match="decoder-only"):
        check_architecture(encoder, 10)
