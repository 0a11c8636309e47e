"""The tiny policy: a llama-type decoder of about half a million parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PolicyShape:
    """Sizes of the decoder; head_dim = width / heads must be at least 32 (vLLM on CPU refuses less)."""

    layers: int = 2
    width: int = 128
    heads: int = 4
    feed_forward: int = 384
    max_positions: int = 1024
    init_std: float = 0.05

    def __post_init__(self) -> None:
        if self.width % self.heads or self.width // self.heads < 32:
            raise ValueError(
                f"policy width {self.width} with {self.heads} heads gives a head size that is not a whole number of "
                "at least 32: choose width = heads x 32 or more."
            )


def build_policy(tokenizer: Any, shape: PolicyShape | None = None, seed: int = 0) -> Any:
    """A freshly initialised LlamaForCausalLM in float32 for the tokenizer's vocabulary; the seed fixes its weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = shape or PolicyShape()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.max_positions,
        initializer_range=shape.init_std,
        tie_word_embeddings=True,
        attention_bias=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float()


def parameter_count(model: Any) -> int:
    """Number of parameters, tied embeddings counted once."""
    return sum(parameter.numel() for parameter in model.parameters())
