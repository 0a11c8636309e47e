"""What the engine asks of a model before it starts: context length, end-of-sequence tokens, kind of attention."""

from __future__ import annotations

from typing import Any


def context_length(config: Any, wanted: int | None) -> int:
    """Most tokens of prompt and output.

    Args:
        config: the model's transformers configuration.
        wanted: a smaller limit, or None for the model's own.

    Raises:
        ValueError: `wanted` is not in [2, the model's limit].
    """
    own = getattr(config.get_text_config(), "max_position_embeddings", None)
    length = own if wanted is None else wanted
    if length is None:
        raise ValueError("the model's configuration names no max_position_embeddings: set rollout.max_model_len")
    if length < 2 or (own is not None and length > own):
        raise ValueError(f"max_model_len={wanted} must be at least 2 and at most the model's own {own}")
    return int(length)


def end_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """End-of-sequence tokens named by the model's generation configuration, its configuration and the tokenizer.

    Those outside the model's vocabulary are left out: they can be neither drawn nor forbidden.
    """
    named = [getattr(getattr(model, "generation_config", None), "eos_token_id", None), model.config.eos_token_id]
    named.append(getattr(tokenizer, "eos_token_id", None))
    found: set[int] = set()
    for value in named:
        found.update([value] if isinstance(value, int) else value or ())
    return frozenset(token for token in found if 0 <= token < vocabulary_size(model))


def vocabulary_size(model: Any) -> int:
    """Tokens that the model has an embedding for; the tokenizer may know fewer."""
    return int(model.get_input_embeddings().weight.shape[0])


def check_limits(**limits: int) -> None:
    """Refuse limits under which no request would ever be served.

    Raises:
        ValueError: one of them is below 1.
    """
    for name, value in limits.items():
        if value < 1:
            raise ValueError(f"{name}={value} must be at least 1: the engine could serve no request")


def check_architecture(model: Any, max_model_len: int) -> None:
    """Refuse models whose attention the row cache cannot serve.

    Raises:
        NotImplementedError: an encoder-decoder, a recurrent state, or a sliding window shorter than the context.
    """
    config = model.config.get_text_config()
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise NotImplementedError(f"the embedded rollout serves decoder-only models, and {name} has an encoder")
    if getattr(model, "_is_stateful", False):
        raise NotImplementedError(f"the embedded rollout serves attention models, and {name} keeps a recurrent state")
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention"}
    window = getattr(config, "sliding_window", None)
    if kinds - {"sliding_attention"}:
        raise NotImplementedError(f"the embedded rollout serves full attention only, and {name} has {sorted(kinds)}")
    windowed = bool(kinds) or not hasattr(config, "layer_types")
    if windowed and window is not None and window < max_model_len:
        raise NotImplementedError(
            f"{name} attends to a sliding window of {window} tokens: set rollout.max_model_len to at most {window}"
        )
