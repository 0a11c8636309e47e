"""What the five actions do: sub-questions get an order, searches bring passages, conclusions become memory.

Source: Dep-Search, section 3.2 and 3.3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_agentic.core.environment import Completion, Effect, Finish, Generate, Observe, Passage, Reject, Tools
from verl_agentic.core.grammar import Action
from verl_agentic.core.outcomes import FaultCode
from verl_agentic.core.suggest import did_you_mean
from verl_agentic.methods.dep_search.actions import (
    CONCLUSION,
    CONCLUSION_CUT,
    CONCLUSION_EMPTY,
    CONCLUSION_TOKENS,
    DECOMPOSE,
    MEMORY,
    RECALLED,
    REUSED,
    STORED,
)
from verl_agentic.methods.dep_search.decompose import InvalidDecompositionError, Trace
from verl_agentic.methods.dep_search.memory import Entry, Memory
from verl_agentic.methods.dep_search.memory_file import load, save

# What is written to the memory.
CONCLUSIONS, PASSAGES, NOTHING = "conclusions", "passages", "nothing"
STORES = (CONCLUSIONS, PASSAGES, NOTHING)
DAG, LINEAR = "dag", "linear"
DECOMPOSITIONS = (DAG, LINEAR)
# Names of the pack's texts.
FACTS = "facts"
ORDER, RECALL, STORED_FACTS, SHOWN_FACTS, NO_FACTS = "order", "memory", "stored", "shown", "no_facts"

_LINE_MARK = re.compile(r"^(?:[-*•]\s+|[0-9]{1,6}[.)]\s+)+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_WORD = re.compile(r"\w")


def check_environment(knobs: Mapping[str, Any]) -> None:
    """Refuse knobs under which no memory can work.

    Raises:
        ValueError: naming the key.
    """
    for key, known in (("store", STORES), ("decomposition", DECOMPOSITIONS)):
        if knobs[key] not in known:
            near = did_you_mean(str(knobs[key]), known)
            raise ValueError(
                f"agentic.environment.{key}: unknown value {knobs[key]!r}{near} (available: {list(known)})"
            )
    for key, least in (("memory_capacity", 1), ("recent", 0), ("conclusion_tokens", 1)):
        if knobs[key] < least:
            raise ValueError(f"agentic.environment.{key} must be at least {least}, got {knobs[key]}")
    if not -1 <= knobs["threshold"] <= 1:
        raise ValueError(
            f"agentic.environment.threshold must be a cosine similarity between -1 and 1, got {knobs['threshold']}"
        )


def embeds(knobs: Mapping[str, Any]) -> bool:
    """Whether there is a memory, hence vectors."""
    return bool(knobs["store"] != NOTHING)


class DepSearchEnvironment:
    """The environment of one episode.

    Args:
        tools: search, renderer, vectors, and the knobs `memory_capacity`, `recent`, `threshold`, `store`,
            `decomposition` and `conclusion_tokens`.
        start: what the memory holds at first (M_0); nothing in training.

    Attributes:
        memory: the memory.
    """

    def __init__(self, tools: Tools, start: Iterable[Entry] = ()):
        self._tools, self._knobs = tools, tools.knobs
        self._trace = Trace()
        self.memory = Memory(self._knobs["memory_capacity"], start)
        self._not_reused: set[str] = set()

    @classmethod
    def resumed(cls, tools: Tools, path: Path) -> DepSearchEnvironment:
        """An environment whose memory starts from a memory file, empty where there is none yet.

        Raises:
            ValueError: the file is no memory, is damaged, or was written by a newer version.
        """
        return cls(tools, load(path) if path.exists() else ())

    def keep(self, path: Path) -> None:
        """Write the memory to a memory file."""
        save(self.memory, path)

    async def apply(self, action: Action) -> Effect | Generate:
        if action.tag.terminal:
            return Finish(action.body)
        if action.tag.name == DECOMPOSE:
            return self._decompose(action.body)
        if action.tag.name == CONCLUSION:
            return Generate(FACTS, self._knobs["conclusion_tokens"], self._conclude)
        return await (self._recall if action.tag.name == MEMORY else self._retrieve)(action.body)

    def _decompose(self, body: str) -> Effect:
        """The order of solving; told, and not enforced."""
        try:
            self._trace = self._trace.extend(body, linear=self._knobs["decomposition"] == LINEAR)
        except InvalidDecompositionError as error:
            return Reject(FaultCode.INVALID_DECOMPOSITION, error.notice)
        return Observe((" ".join(f"#{number}" for number in self._trace.order()),), template=ORDER)

    async def _retrieve(self, query: str) -> Observe:
        passages = await self._tools.search(query)
        figures = await self._store(_sentences_of(passages)) if self._knobs["store"] == PASSAGES else ()
        rendered = self._tools.render(passages)
        return Observe(rendered.texts, rendered.passage_ids, figures=figures)

    async def _recall(self, query: str) -> Observe:
        if not len(self.memory):
            return Observe((), template=RECALL)
        (vector,) = await self._tools.embed([query], "query")
        found = self.memory.recall(vector, self._knobs["recent"], self._knobs["threshold"])
        texts = tuple(entry.text for entry in found)
        reused = self._not_reused.intersection(texts)
        self._not_reused -= reused
        return Observe(texts, template=RECALL, figures=((RECALLED, float(len(texts))), (REUSED, float(len(reused)))))

    async def _conclude(self, written: Completion) -> Observe:
        """Keep the facts of a conclusion; of one that was cut, the last sentence is unfinished and left out."""
        facts = fact_sentences(written.text)
        if written.cut:
            facts = facts[:-1]
        figures = (
            (CONCLUSION_TOKENS, float(written.tokens)),
            (CONCLUSION_EMPTY, float(not facts)),
            (CONCLUSION_CUT, float(written.cut)),
        )
        if not facts:
            return Observe((), template=NO_FACTS, figures=figures)
        if self._knobs["store"] == NOTHING:
            return Observe(tuple(facts), template=SHOWN_FACTS, figures=figures)
        return Observe((), template=STORED_FACTS, figures=(*figures, *await self._store(facts)))

    async def _store(self, facts: Sequence[str]) -> tuple[tuple[str, float], ...]:
        """Write facts in their order, so that the last is the last written."""
        known = {entry.text for entry in self.memory.entries}
        new = set(facts) - known
        if facts:
            for fact, vector in zip(facts, await self._tools.embed(facts, "passage"), strict=True):
                self.memory.write(fact, vector)
        self._not_reused |= new
        return ((STORED, float(len(new))),)


def fact_sentences(text: str) -> list[str]:
    """The sentences of a text: a line ends one, and so does a full stop, question or exclamation mark before a space.

    List marks at the start of a line are taken off, and what holds no letter or digit is left out.
    """
    lines = (_LINE_MARK.sub("", line.strip()) for line in text.splitlines())
    sentences = (sentence.strip() for line in lines for sentence in _SENTENCE_END.split(line))
    return [sentence for sentence in sentences if _WORD.search(sentence)]


def _sentences_of(passages: Sequence[Passage]) -> list[str]:
    return [sentence for passage in passages for sentence in fact_sentences(passage.text or passage.contents)]
