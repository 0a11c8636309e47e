"""Cold-start episodes: the turn engine run with a method's oracle in place of a model, over fresh random worlds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.prompts import load_pack
from verl_agentic.bridge.settings import default_agentic, default_environment
from verl_agentic.bridge.text_sampler import text_sampler
from verl_agentic.bridge.turn_engine import TurnEngine, render_passages
from verl_agentic.core.environment import Environment, LastingEnvironment, Search, Tools
from verl_agentic.core.generation import Sampler
from verl_agentic.core.question import Question
from verl_agentic.core.trajectory import Episode
from verl_agentic.demo.oracles import Oracle, load_method, load_oracle
from verl_agentic.demo.questions import draw_question
from verl_agentic.demo.search import CorpusSearch, embed
from verl_agentic.demo.world import WorldSizes, generate_world

DEMO_PACK = "demo"

KindShares = dict[str, float]
HabitMix = dict[str, dict[str, float]]


def scripted_sampler(codec: TokenizerCodec, oracle: Oracle) -> Sampler:
    """A sampler that lets the oracle write each turn; it hands over the text that was appended since its last turn."""

    async def write(_: list[int], appended: list[int]) -> str:
        return oracle.turn(codec.decode(appended))

    return text_sampler(codec, write)


class Runner(Protocol):
    """A method's turn engine, and an environment for each episode."""

    @property
    def engine(self) -> TurnEngine: ...

    @property
    def actions_off(self) -> tuple[str, ...]:
        """Actions that are taken away from the policy."""

    def environment(self, search: Search) -> Environment:
        """A fresh environment that asks `search`."""


class MethodRunner:
    """A method of the package in its demo pack and under its demo budget, for episodes outside a trainer.

    actions_off: actions that are taken away from the policy.
    environment: knobs of `agentic.environment` that differ from the demo's.

    Raises:
        ValueError: the method has no such knob, or not with such a value.
    """

    def __init__(
        self,
        method: str,
        codec: TokenizerCodec,
        actions_off: Collection[str] = (),
        environment: Mapping[str, Any] | None = None,
    ):
        self.method = load_method(method)
        self.actions_off = tuple(actions_off)
        self._pack = load_pack(self.method.prompts, DEMO_PACK)
        oracle = load_oracle(method)
        changed = oracle.demo_environment(actions_off) if hasattr(oracle, "demo_environment") else {}
        self._knobs = {**default_environment(method), **changed}
        if unknown := sorted(set(environment or {}) - set(self._knobs)):
            raise ValueError(
                f"method {method!r} has no agentic.environment.{unknown[0]}: choose of {list(self._knobs)}."
            )
        self._knobs.update(environment or {})
        self.method.check_environment(self._knobs)
        grammar, budget = self.method.grammar.without(actions_off), oracle.DEMO_BUDGET
        self.engine = TurnEngine(codec, grammar, self._pack, budget, default_agentic(method).forgery_ends)

    def environment(self, search: Search) -> Environment:
        """A fresh environment that asks `search`."""
        return self.method.environment(self._tools(search))

    def resumed_environment(self, search: Search, memory: Path) -> LastingEnvironment:
        """An environment that starts from what an earlier one kept in the file `memory`.

        Raises:
            ValueError: nothing of the method outlives an episode, or the file does not fit.
        """
        if self.method.resumed_environment is None:
            raise ValueError(f"method {self.method.name!r} has no memory that outlives a question; leave it out.")
        return self.method.resumed_environment(self._tools(search), memory)

    def _tools(self, search: Search) -> Tools:
        return Tools(search, partial(render_passages, self._pack), embed, self._knobs)


@dataclass(frozen=True)
class TraceSource:
    """Writes episodes of one method.

    kinds: share of each kind of question. mix: habits of the oracle, None for the module's own.
    """

    runner: Runner
    oracle: ModuleType
    kinds: KindShares
    sizes: WorldSizes
    mix: HabitMix | None = None

    def episodes(self, seed: str, count: int) -> list[Episode]:
        """The episodes of `sessions`."""
        return [episode for _, episode in self.sessions(seed, count)]

    def sessions(self, seed: str, count: int) -> list[tuple[Question, Episode]]:
        """`count` questions and their episodes over one fresh world.

        Questions whose gold passages a good query misses are drawn again.
        """
        rng = random.Random(f"traces {seed}")
        world = generate_world(rng.getrandbits(48), self.sizes)
        search = CorpusSearch(world.passages)
        kinds = rng.choices(list(self.kinds), list(self.kinds.values()), k=count)
        questions = [_findable(search, partial(draw_question, world, kind, rng)) for kind in kinds]
        off = self.runner.actions_off
        oracles = [self.oracle.make_oracle(question, world.look_up, rng, self.mix, off) for question in questions]
        return list(zip(questions, asyncio.run(self._run(questions, oracles, search)), strict=True))

    async def _run(self, questions: list[Question], oracles: list[Oracle], search: Search) -> list[Episode]:
        engine = self.runner.engine
        return [
            await engine.run(question.text, scripted_sampler(engine.codec, oracle), self.runner.environment(search))
            for question, oracle in zip(questions, oracles, strict=True)
        ]


def _findable(search: CorpusSearch, draw: Callable[[], Question]) -> Question:
    while True:
        question = draw()
        if all(search.finds(step.entity, step.keyword, step.passage_id) for step in question.searches):
            return question


def trace_source(
    method: str,
    codec: TokenizerCodec,
    kinds: KindShares,
    sizes: WorldSizes | None = None,
    mix: HabitMix | None = None,
    actions_off: Collection[str] = (),
) -> TraceSource:
    """The source of a method's episodes, in the closed-vocabulary prompt pack and under the demo's budget."""
    return TraceSource(MethodRunner(method, codec, actions_off), load_oracle(method), kinds, sizes or WorldSizes(), mix)
