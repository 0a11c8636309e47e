"""What the sessions of a recipe need outside a trainer: its settings, the student's tokenizer, the turn engine."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from omegaconf import DictConfig

from verl_agentic.bridge.codec import TokenizerCodec, check_append_only
from verl_agentic.bridge.prompts import PromptPack, load_pack
from verl_agentic.bridge.settings import Settings, load_settings
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.core.environment import Environment, Search, Tools
from verl_agentic.core.method import Method
from verl_agentic.demo.search import embed
from verl_agentic.methods import load_method
from verl_agentic.warm_start.trace_file import fingerprint


@dataclass(frozen=True)
class Workplace:
    """A recipe's method, ready to run sessions; `tokenizer` is the fingerprint of the student's."""

    settings: Settings
    method: Method
    pack: PromptPack
    engine: TurnEngine
    tokenizer: str

    @property
    def actions_off(self) -> tuple[str, ...]:
        """Actions that the recipe takes away from the policy."""
        return self.settings.actions_off

    @property
    def told(self) -> dict[str, Any]:
        """What sessions depend on here, as plain values."""
        settings = self.settings
        return {
            "method": settings.method,
            "prompts": settings.prompts,
            "actions_off": list(settings.actions_off),
            "budget": asdict(self.engine.budget),
            "tokenizer": self.tokenizer,
        }

    def environment(self, search: Search) -> Environment:
        """A fresh environment that asks `search`, with the vectors of the demo's encoder."""
        return self.method.environment(
            Tools(search, partial(render_passages, self.pack), embed, self.settings.environment)
        )


def make_workplace(config: DictConfig, tokenizer_path: str | None = None) -> Workplace:
    """The workplace of a composed recipe.

    Args:
        config: verl's whole configuration.
        tokenizer_path: folder or name of the student's tokenizer; None: the recipe's model.

    Raises:
        ValueError: the recipe's settings do not fit, or no tokenizer with an append-only chat template is there.
    """
    settings = load_settings(config)
    method = load_method(settings.method)
    pack = load_pack(method.prompts, settings.prompts)
    tokenizer = load_tokenizer(config, tokenizer_path)
    codec = TokenizerCodec(tokenizer, config.data.get("apply_chat_template_kwargs") or {})
    check_append_only(codec)
    grammar = method.grammar.without(settings.actions_off)
    engine = TurnEngine(codec, grammar, pack, settings.budget, settings.forgery_ends)
    return Workplace(settings, method, pack, engine, fingerprint(tokenizer))


def load_tokenizer(config: DictConfig, path: str | None) -> Any:
    """The student's tokenizer, with the recipe's chat template where it names one."""
    from transformers import AutoTokenizer

    model = config.actor_rollout_ref.model
    chosen = str(path or model.get("tokenizer_path") or model.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(chosen, trust_remote_code=model.get("trust_remote_code", False))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no tokenizer can be loaded from {chosen} ({' '.join(str(error).split())}); give --tokenizer FOLDER."
        ) from error
    if model.get("custom_chat_template"):
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer
