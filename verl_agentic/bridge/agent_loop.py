"""verl's agent loop around the turn engine: one question, one session, its rows and rewards."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar
from uuid import uuid4

from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.faults import PROGRAM, report_fault
from verl_agentic.bridge.judging import judge_metrics, judgements, make_judge
from verl_agentic.bridge.output import row_outputs
from verl_agentic.bridge.prompts import PromptPack, load_pack
from verl_agentic.bridge.settings import Settings, load_settings
from verl_agentic.bridge.turn_engine import Sample, TurnEngine, render_passages
from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.retriever import RetrieverClient
from verl_agentic.core.environment import Passage, Tools
from verl_agentic.core.items import question_and_golds
from verl_agentic.core.judging import Judge
from verl_agentic.core.method import Method
from verl_agentic.core.outcomes import InfraFault, InfraFaultError
from verl_agentic.core.queries import QueryLog
from verl_agentic.core.seeds import request_seed
from verl_agentic.core.statistics import session_statistics
from verl_agentic.core.trajectory import check_episode

T = TypeVar("T")


@dataclass(frozen=True)
class _Workplace:
    """What the sessions of one worker process share: read once, since a worker runs thousands of sessions."""

    config: DictConfig
    settings: Settings
    retriever: RetrieverClient
    pack: PromptPack
    engine: TurnEngine
    judge: Judge | None


_workplaces: dict[tuple[int, str], _Workplace] = {}


def _workplace(config: DictConfig, method: Method, codec: TokenizerCodec) -> _Workplace:
    """The workplace of a configuration object; it holds the object, so that its id stays its own."""
    key = (id(config), method.name)
    if key not in _workplaces:
        settings = load_settings(config, method.name)
        method.check_knobs(settings.reward)
        method.check_environment(settings.environment)
        pack = load_pack(method.prompts, settings.prompts)
        retriever = RetrieverClient(
            list(settings.retriever.urls),
            topk=settings.retriever.topk,
            timeout_s=settings.retriever.timeout_s,
            deadline_s=settings.retriever.deadline_s,
            retries=settings.retriever.retries,
        )
        grammar = method.grammar.without(settings.actions_off)
        engine = TurnEngine(codec, grammar, pack, settings.budget, settings.forgery_ends)
        judge = make_judge(settings, method)
        _workplaces[key] = _Workplace(config, settings, retriever, pack, engine, judge)
    return _workplaces[key]


class Generation:
    """The session's sampler: calls verl's rollout, seeds each request, and remembers every sampled id.

    Args:
        server: verl's client of the rollout servers.
        sampling_params: verl's sampling parameters of this session.
        seed: gives the seed of a generation call from its number within the session.
    """

    def __init__(self, server: Any, sampling_params: dict[str, Any], seed: Any):
        self._server, self._params, self._seed = server, sampling_params, seed
        self._request_id = uuid4().hex
        self._calls = 0
        self.seconds = 0.0
        self.sampled: list[int] = []
        self.extra_fields: dict[str, Any] = {}

    async def __call__(self, context: list[int], params: dict[str, Any]) -> Sample:
        request = {**self._params, **params, "seed": self._seed(self._calls)}
        self._calls += 1
        output = await self._generate(context, request)
        self.sampled.extend(output.token_ids)
        self._note(output.extra_fields)
        finish = "abort" if output.stop_reason == "aborted" else output.extra_fields.get("finish_reason")
        return Sample(list(output.token_ids), output.log_probs, finish)

    async def _generate(self, context: list[int], request: dict[str, Any]) -> Any:
        started = time.perf_counter()
        try:
            return await self._server.generate(request_id=self._request_id, prompt_ids=context, sampling_params=request)
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            raise InfraFaultError("rollout", f"{type(error).__name__}: {reason}") from error
        finally:
            self.seconds += time.perf_counter() - started

    def _note(self, fields: Mapping[str, Any]) -> None:
        """Keep the oldest and the newest weight version that took part in the session."""
        if not self.extra_fields:
            self.extra_fields = dict(fields)
            return
        for key, pick in (("min_global_steps", min), ("max_global_steps", max)):
            versions = [v for v in (self.extra_fields.get(key), fields.get(key)) if v is not None]
            self.extra_fields[key] = pick(versions) if versions else None


class Retrieval:
    """The session's search and embedding: asks the retriever, and remembers what was asked and how long it took.

    Args:
        client: the worker's client.

    Attributes:
        seconds: spent waiting for passages and vectors.
        log: the session's queries.
    """

    def __init__(self, client: RetrieverClient):
        self._client = client
        self.seconds = 0.0
        self.log = QueryLog()

    async def __call__(self, query: str) -> list[Passage]:
        self.log.note(query)
        return (await self._timed(self._client.retrieve([query])))[0]

    async def embed(self, texts: Sequence[str], kind: Literal["query", "passage"]) -> Sequence[Sequence[float]]:
        """Vectors of `texts`, none of which may be blank."""
        return (await self._timed(self._client.embed(texts, kind))).tolist() if texts else []

    async def _timed(self, asked: Awaitable[T]) -> T:
        started = time.perf_counter()
        try:
            return await asked
        except RetrieverError as error:
            raise InfraFaultError("retriever", str(error)) from error
        finally:
            self.seconds += time.perf_counter() - started


class MethodAgentLoop(AgentLoopBase):
    """The agent loop of a method with one growing context; a method's own class sets `method` and nothing else."""

    method: Method

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Run one session of one data row.

        Raises:
            InfraFaultError: a fault outside the policy; verl then marks the group as failed, and the session is
                neither stored nor trained.
            Exception: an error of the program; the trainer is told, and ends the run with it.
        """
        try:
            return await self._session(sampling_params, row)
        except InfraFaultError as error:
            await report_fault(self.config, row, error.outcome)
            raise
        except Exception as error:
            await report_fault(self.config, row, InfraFault(PROGRAM, f"{type(error).__name__}: {error}"))
            raise

    async def _session(self, sampling_params: dict[str, Any], row: Mapping[str, Any]) -> list[AgentLoopOutput]:
        place = _workplace(self.config, self.method, TokenizerCodec(self.tokenizer, self.apply_chat_template_kwargs))
        settings = place.settings
        question, golds = question_and_golds(row)
        generation = Generation(self.server_manager, sampling_params, self._seed_of(settings, row, question))
        retrieval = Retrieval(place.retriever)
        render = partial(render_passages, place.pack)
        environment = self.method.environment(Tools(retrieval, render, retrieval.embed, settings.environment))
        episode = await place.engine.run(question, generation, environment)
        answers = await judgements(place.judge, self.method, episode, golds, settings)
        score = self.method.score(episode, golds, settings.reward, answers)
        if settings.assert_tokens:
            check_episode(episode, score.rewards, generation.sampled)
        extra = {
            **generation.extra_fields,
            "sampled": generation.sampled if settings.assert_tokens else None,
            "judge": place.judge.name if place.judge else None,
        }
        timing = {"generate_sequences": generation.seconds, "tool_calls": retrieval.seconds}
        metrics = {
            "duplicate_queries": float(retrieval.log.duplicates),
            **session_statistics(episode, self.method.grammar),
            **judge_metrics(answers),
        }
        return row_outputs(episode, score, timing, extra, metrics)

    @staticmethod
    def _seed_of(settings: Settings, row: Mapping[str, Any], question: str) -> Any:
        info = row.get("extra_info") or {}
        return partial(
            request_seed,
            settings.seed,
            int(row.get("global_steps", 0)),
            f"{row.get('index', info.get('index', 0))} {question}",
            int(row.get("session_id", 0)),
            split=str(info.get("split", "train")),
        )
