"""The turn engine: one question, turn by turn, tokens in and tokens out.

It reads like the way of a question: prompt ids -> generate a turn -> parse its new tokens -> apply the action -> append
the observation with mask 0 -> ... -> answer. It never re-encodes what was generated and knows nothing of verl, so the
same engine runs under verl's agent loop, under a scripted model by hand, and under the oracle of a cold start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.prompts import PromptPack
from verl_agentic.core.budget import Budget
from verl_agentic.core.environment import (
    Completion,
    Effect,
    Environment,
    Finish,
    Generate,
    Observe,
    Passage,
    Proceed,
    Reject,
    Rewrite,
)
from verl_agentic.core.generation import Sample, Sampler
from verl_agentic.core.grammar import Action, Grammar, Parsed
from verl_agentic.core.outcomes import FaultCode, InfraFaultError, ModelFault, Ok, Outcome
from verl_agentic.core.token_offsets import token_span
from verl_agentic.core.trajectory import Episode, Row, RowBuilder, SideCall, Turn

# A model that repeats closing tags without an action would else be asked again after each of them.
MAX_CALLS_PER_TURN = 8


@dataclass
class _State:
    """The mutable part of an episode; `units` holds the ids of each executed action with its observation: what a
    rewritten context is made of."""

    row: RowBuilder
    base: tuple[int, ...]
    rows: list[Row] = field(default_factory=list)
    units: list[list[int]] = field(default_factory=list)
    rejected: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    corrections: int = 0
    passages: list[tuple[str, ...]] = field(default_factory=list)
    outcome: Outcome | None = None
    prediction: str | None = None

    @property
    def used_actions(self) -> int:
        return sum(self.actions.values()) + self.rejected


class TurnEngine:
    """Runs episodes of a single-context method.

    Args:
        codec: text and ids.
        grammar: the method's tags.
        pack: the method's texts.
        budget: the limits of one trajectory.
        forgery_ends: whether a turn in which the policy wrote an observation or a role marker ends the trajectory; else
            it is corrected like any invalid turn.
    """

    def __init__(
        self,
        codec: TokenizerCodec,
        grammar: Grammar,
        pack: PromptPack,
        budget: Budget,
        forgery_ends: bool = True,
    ):
        self.codec, self.grammar, self.pack, self.budget = codec, grammar, pack, budget
        self._forgery_ends = forgery_ends
        stop_ids = codec.single_ids(grammar.stop_strings)
        closings = {codec.decode([i]) for i in stop_ids}
        self._stop = {
            "stop_token_ids": [*stop_ids, *sorted(codec.eos_ids)],
            "stop": [s for s in grammar.stop_strings if s not in closings],
            "include_stop_str_in_output": True,
        }

    async def run(self, question: str, sample: Sampler, environment: Environment) -> Episode:
        """Run one episode to its end.

        Raises:
            InfraFaultError: the retriever or the rollout failed, or the question does not fit the prompt budget.
        """
        base = self.prompt_ids(question)
        state = _State(row=RowBuilder(prompt_ids=base), base=tuple(base))
        while state.outcome is None:
            parsed = await self._turn(state, sample)
            if parsed.action is None:
                self._invalid(state, parsed)
            else:
                await self._act(state, parsed, sample, environment)
        return Episode(
            question=question,
            rows=(*state.rows, state.row.freeze()),
            outcome=state.outcome,
            prediction=state.prediction,
            actions=dict(state.actions),
            corrections=state.corrections,
            passages=tuple(state.passages),
        )

    def prompt_ids(self, question: str) -> list[int]:
        """Ids of the first prompt."""
        ids = list(self.codec.chat([{"role": "user", "content": self.pack.user.format(question=question)}]))
        if len(ids) > self.budget.prompt_tokens:
            raise InfraFaultError(
                "data",
                f"the prompt of question {question[:60]!r} has {len(ids)} tokens, data.max_prompt_length allows "
                f"{self.budget.prompt_tokens}; raise it or drop the question",
            )
        return ids

    async def _turn(self, state: _State, sample: Sampler) -> Parsed:
        """Generate one turn, keep it up to its first completed action, and append it to the row."""
        ids: list[int] = []
        log_probs: list[float] | None = []
        limit = min(self.budget.turn_tokens, self._room(state))
        # A stop string inside the thinking stops generation but not the turn: go on from there.
        for _ in range(MAX_CALLS_PER_TURN):
            part = await sample(state.row.context + ids, {**self._stop, "max_tokens": limit - len(ids)})
            ids, log_probs = self._join(ids, log_probs, part)
            ended = ids[-1] in self.codec.eos_ids
            cut = not ended and (len(ids) >= limit or part.finish_reason == "length")
            if ended or cut or self.grammar.completes(self._visible(ids)) is not None:
                break
        return self._keep(state, ids, log_probs, truncated=cut)

    @staticmethod
    def _join(ids: list[int], log_probs: list[float] | None, part: Sample) -> tuple[list[int], list[float] | None]:
        if part.finish_reason == "abort":
            raise InfraFaultError("rollout", "a generation request was aborted")
        if not part.token_ids:
            raise InfraFaultError("rollout", "a generation request returned no token")
        both = None if log_probs is None or part.log_probs is None else log_probs + list(part.log_probs)
        return ids + list(part.token_ids), both

    def _keep(self, state: _State, ids: list[int], log_probs: list[float] | None, truncated: bool) -> Parsed:
        kept = self._cut(ids)
        parsed = self.grammar.parse(self._visible(ids[:kept]), truncated=truncated)
        start, end = state.row.append_policy(ids[:kept], None if log_probs is None else log_probs[:kept])
        state.row.turns.append(
            Turn(
                start=start,
                end=end,
                text=self.codec.decode(ids[:kept]),
                action=parsed.action,
                fault=parsed.fault,
                dropped_tokens=len(ids) - kept,
                tags_seen=parsed.tags_seen,
                action_span=self._action_span(ids[:kept], start, parsed.action),
            )
        )
        return parsed

    def _action_span(self, ids: list[int], start: int, action: Action | None) -> tuple[int, int] | None:
        """Tokens of the response that hold an action of the turn `ids`, which begins at token `start`."""
        if action is None:
            return None
        first, last = token_span(ids, self.codec.decode, action.start, action.end)
        return start + first, start + last

    def _visible(self, ids: list[int]) -> str:
        """Decoded ids without the end-of-turn token that closes them."""
        return self.codec.decode(ids[:-1] if ids and ids[-1] in self.codec.eos_ids else ids)

    def _cut(self, ids: list[int]) -> int:
        """How many of `ids` reach to the end of the first completed action; all where none is completed.

        The last kept token may reach past the closing tag (P5): ids are never altered. Whether a prefix completes an
        action is monotone in its length, so the place is found by bisection.
        """
        if self.grammar.completes(self.codec.decode(ids)) is None:
            return len(ids)
        low, high = 1, len(ids)
        while low < high:
            middle = (low + high) // 2
            if self.grammar.completes(self.codec.decode(ids[:middle])) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def _invalid(self, state: _State, parsed: Parsed) -> None:
        """A turn without an action: one corrective message while there are any left, else the end."""
        assert parsed.fault is not None
        ends = self._forgery_ends and parsed.fault is FaultCode.FORGED_MARKUP
        correction = self._notice_ids(state, parsed.fault.value)
        if ends or state.corrections >= self.budget.max_corrections or not self._fits(state, correction):
            state.outcome = ModelFault(parsed.fault)
            return
        state.corrections += 1
        state.row.append_environment(correction)

    def _notice_ids(self, state: _State, name: str) -> list[int]:
        """Ids that tell the policy what was wrong with its last turn.

        A turn that the policy closed is answered by a user message; one that was cut goes on in place.
        """
        text = self.pack.notice(name)
        closed = state.row.response_ids[-1] in self.codec.eos_ids
        return self.codec.next_user_turn(text) if closed else self.codec.encode(text)

    async def _act(self, state: _State, parsed: Parsed, sample: Sampler, environment: Environment) -> None:
        action = parsed.action
        assert action is not None
        if not action.tag.terminal and state.used_actions >= self.budget.max_actions:
            state.outcome = ModelFault(FaultCode.LIMIT_EXCEEDED)
            return
        effect = await environment.apply(action)
        if isinstance(effect, Generate):
            effect = await self._generate(state, effect, sample)
        state.row.turns[-1] = replace(state.row.turns[-1], effect=effect)
        match effect:
            case Finish(prediction):
                state.prediction, state.outcome = prediction, Ok()
            case Observe():
                self._execute(state, action)
                if not effect.template:
                    state.passages.append(effect.passage_ids)
                self._tell(state, self.observation_ids(effect))
            case Proceed():
                self._execute(state, action)
                self._tell(state, [])
            case Rewrite(kept):
                self._execute(state, action)
                self._rewrite(state, kept)
            case Reject(fault, notice):
                state.rejected += 1
                state.row.turns[-1] = replace(state.row.turns[-1], action=None, fault=fault)
                self._tell(state, self._notice_ids(state, notice), of_action=False)

    async def _generate(self, state: _State, asked: Generate, sample: Sampler) -> Effect:
        """The effect of an action that needs a generation: the context is only read, and the tokens are noted apart."""
        prompt = state.row.context + self.codec.encode(self.pack.requests[asked.request])
        limit = min(asked.max_tokens, self.budget.prompt_tokens + self.budget.response_tokens - len(prompt))
        stop = {**self._stop, "stop_token_ids": sorted(self.codec.eos_ids), "stop": [], "max_tokens": limit}
        ids = self._join([], None, await sample(prompt, stop))[0] if limit > 0 else []
        state.row.turns[-1] = replace(state.row.turns[-1], side_call=SideCall(tuple(prompt), tuple(ids)))
        ended = bool(ids) and ids[-1] in self.codec.eos_ids
        return await asked.then(Completion(self._visible(ids), tokens=len(ids), cut=not ended and len(ids) >= limit))

    def _execute(self, state: _State, action: Action) -> None:
        turn = state.row.turns[-1]
        state.actions[action.tag.name] += 1
        state.units.append(state.row.response_ids[turn.start : turn.end])

    def _tell(self, state: _State, ids: list[int], of_action: bool = True) -> None:
        """Append what the environment says, or end the trajectory where no turn would fit after it."""
        if of_action:
            state.units[-1].extend(ids)
        if state.used_actions >= self.budget.max_actions:
            ids = ids + self.codec.encode(self.pack.last_turn)
        if not self._fits(state, ids):
            state.outcome = ModelFault(FaultCode.BUDGET_EXHAUSTED)
            return
        state.row.append_environment(ids)

    def _rewrite(self, state: _State, kept: tuple[int, ...]) -> None:
        """Go on in a new row, whose prompt is the first one and the kept actions, id by id as they were."""
        prompt = [*state.base, *(token for number in kept for token in state.units[number])]
        if state.used_actions >= self.budget.max_actions:
            prompt += self.codec.encode(self.pack.last_turn)
        if len(prompt) > self.budget.prompt_tokens:
            state.outcome = ModelFault(FaultCode.BUDGET_EXHAUSTED)
            return
        state.rows.append(state.row.freeze())
        state.row = RowBuilder(prompt_ids=prompt)

    def observation_ids(self, effect: Observe) -> list[int]:
        """Ids of an observation: its texts cut to the token budget, its closing tag always kept."""
        before, after = (self.codec.encode(part) for part in self.pack.observation_parts(effect.template))
        body = self.codec.encode_untrusted(self.pack.passage_separator.join(effect.texts))
        return before + body[: max(0, self.budget.observation_tokens - len(before) - len(after))] + after

    def _room(self, state: _State) -> int:
        return self.budget.response_tokens - len(state.row.response_ids)

    def _fits(self, state: _State, ids: list[int]) -> bool:
        """Whether at least one policy token has room after `ids`."""
        return len(ids) < self._room(state)


def render_passages(pack: PromptPack, passages: list[Passage]) -> Observe:
    """The observation of a retrieval."""
    return Observe(
        texts=tuple(pack.render_passage(rank, passage) for rank, passage in enumerate(passages, start=1)),
        passage_ids=tuple(passage.id for passage in passages),
    )
