"""Traces of a teacher: a model behind an OpenAI-compatible endpoint writes the turns, over the recipe's retriever.

The student's tokenizer encodes what the teacher writes, and the turn engine runs as in training; only that an invalid
turn ends the session at once, since no trace may hold one.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from verl_agentic.bridge.text_sampler import text_sampler
from verl_agentic.bridge.turn_engine import TurnEngine
from verl_agentic.clients.chat import ChatClient, ChatError
from verl_agentic.clients.errors import RetrieverError
from verl_agentic.clients.retriever import RetrieverClient
from verl_agentic.core.environment import Passage, Search
from verl_agentic.core.grammar import Grammar
from verl_agentic.core.outcomes import InfraFaultError
from verl_agentic.data.filter import Item, read_items
from verl_agentic.warm_start.collecting import Collection, Line, Standard
from verl_agentic.warm_start.workplace import Workplace

FIRST = "{prompt}\n\nWrite your first step now: one step only, up to its closing tag."
NEXT = (
    "{prompt}\n\nWhat you have written and been shown so far:\n\n{so_far}\n\n"
    "Write your next step now: one step only, up to its closing tag."
)
REPLY_TOKENS = 4  # longest reply, in turn budgets of the student: the teacher's own thinking has room in it
MOST_FAULTS = 8  # one after another: then nothing of the infrastructure answers


@dataclass(frozen=True)
class Teacher:
    """The endpoint that writes, and how it is asked.

    Args:
        urls: equal OpenAI-compatible servers, with the path up to `/v1`.
        model: the model's name there.
        temperature, top_p: of its sampling.
        concurrency: sessions at a time.
        timeout_s, deadline_s, retries: of one request, of all tries of it, and how many more tries there are.
        api_key_variable: the variable of the environment that holds the key, if the servers want one.
    """

    urls: tuple[str, ...]
    model: str
    temperature: float = 0.7
    top_p: float = 1.0
    concurrency: int = 8
    timeout_s: float = 120.0
    deadline_s: float = 600.0
    retries: int = 4
    api_key_variable: str = "OPENAI_API_KEY"

    def __post_init__(self) -> None:
        if not self.urls or not self.model:
            raise ValueError("--source teacher needs --teacher URL and --teacher-model NAME.")
        if self.concurrency < 1:
            raise ValueError(f"--concurrency must be at least 1, got {self.concurrency}.")

    def client(self) -> ChatClient:
        """A client of the endpoint."""
        return ChatClient(
            list(self.urls),
            self.model,
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            retries=self.retries,
            concurrency=self.concurrency,
            api_key_variable=self.api_key_variable,
        )


def collect_from_teacher(
    place: Workplace,
    recipe: str,
    data: Sequence[Path],
    out: Path,
    count: int,
    teacher: Teacher,
    seed: int = 0,
    standard: Standard | None = None,
    line: Line = print,
) -> dict[str, int]:
    """Write the teacher's sessions over `count` questions of `data` that end well; returns the counts by reason.

    A session that meets a fault of the infrastructure is counted, never written, and tried again by the next run.

    Raises:
        ValueError: the data, or the record beside `out`, does not fit.
        RuntimeError: many sessions in a row met such a fault; those that ended are on record.
    """
    questions = draw_questions(data, count, seed)
    source = f"teacher {teacher.model}"
    sampling = {"temperature": teacher.temperature, "top_p": teacher.top_p, "topk": place.settings.retriever.topk}
    asked = hashlib.sha256("\n".join(item.question for item in questions).encode()).hexdigest()
    told = {**place.told, "recipe": recipe, "source": source, "seed": seed, **sampling, "questions_sha256": asked}
    collection = Collection(out, count, standard or Standard(), told, line)
    failed = asyncio.run(_Class(place, teacher, collection).run(questions))
    counts = collection.write(len(failed))
    if failed:
        line(f"traces: {len(failed)} sessions met a fault ({failed[0]}); the same command tries them again")
    return counts


def draw_questions(data: Sequence[Path], count: int, seed: int) -> list[Item]:
    """`count` different rows of the files, in an order that the seed fixes; ValueError where there are fewer."""
    items = [item for file in data for item in read_items(file, None)]
    if count > len(items):
        raise ValueError(
            f"--count {count} is more than the {len(items)} rows of {', '.join(map(str, data))}; lower it."
        )
    return random.Random(f"traces {seed}").sample(items, count)


class _Class:
    """The teacher at work: several sessions at a time."""

    def __init__(self, place: Workplace, teacher: Teacher, collection: Collection):
        self._place, self._teacher, self._collection = place, teacher, collection
        budget = replace(place.engine.budget, max_corrections=0)
        self._engine = TurnEngine(place.engine.codec, place.engine.grammar, place.pack, budget)
        self._faults: list[str] = []
        self._in_a_row = 0

    async def run(self, questions: Sequence[Item]) -> list[str]:
        """Run the sessions that are left; returns what those that failed met."""
        told = self._place.settings.retriever
        retriever = RetrieverClient(list(told.urls), told.topk, told.timeout_s, told.deadline_s, told.retries)
        chat, numbers = self._teacher.client(), iter(self._collection.left)
        search = _search(retriever)

        async def work() -> None:
            for number in numbers:
                await self._session(number, questions[number], chat, search)

        workers = [asyncio.ensure_future(work()) for _ in range(self._teacher.concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            await retriever.aclose()
            await chat.aclose()
        return self._faults

    async def _session(self, number: int, item: Item, chat: ChatClient, search: Search) -> None:
        try:
            pen = Pen(chat, self._place, self._engine.prompt_ids(item.question), item.question, self._teacher)
            sampler = text_sampler(self._engine.codec, pen.write)
            episode = await self._engine.run(item.question, sampler, self._place.environment(search))
        except InfraFaultError as fault:
            self._note(fault)
        else:
            self._in_a_row = 0
            self._collection.add([(number, episode, item.golds)])

    def _note(self, fault: InfraFaultError) -> None:
        self._faults.append(" ".join(str(fault).split()))
        self._in_a_row += 1
        if self._in_a_row >= MOST_FAULTS:
            raise RuntimeError(
                f"{MOST_FAULTS} sessions in a row met a fault ({self._faults[-1]}); mend it, the same command goes on "
                "where it stopped."
            ) from fault


class Pen:
    """Writes the turns of one session with the teacher's words.

    Args:
        chat: the endpoint.
        place: grammar, pack and codec.
        base: ids of the first prompt, with which every context begins.
        question: as asked.
        teacher: how it is asked.
    """

    def __init__(self, chat: ChatClient, place: Workplace, base: list[int], question: str, teacher: Teacher):
        self._chat, self._codec, self._grammar, self._base = chat, place.engine.codec, place.engine.grammar, base
        self._prompt = place.pack.user.format(question=question)
        self._options: dict[str, Any] = {
            "temperature": teacher.temperature,
            "top_p": teacher.top_p,
            "max_tokens": REPLY_TOKENS * place.engine.budget.turn_tokens,
            "stop": tuple(self._grammar.stop_strings),
        }

    async def write(self, context: list[int], _: list[int]) -> str:
        """The text of the next turn, given the whole context as it is now.

        Raises:
            InfraFaultError: the endpoint failed.
        """
        messages = [{"role": "user", "content": self._request(context)}]
        try:
            said = await self._chat.complete(messages, **self._options)
        except ChatError as error:
            raise InfraFaultError("teacher", str(error)) from error
        return self._ended(said.strip())

    def _request(self, context: list[int]) -> str:
        so_far = self._codec.decode(context[len(self._base) :])
        for marker in self._grammar.role_markers:
            so_far = so_far.replace(marker, "")
        if not so_far.strip():
            return FIRST.format(prompt=self._prompt)
        return NEXT.format(prompt=self._prompt, so_far=so_far.strip())

    def _ended(self, text: str) -> str:
        """The text up to its closing tag; one without any action ends as a turn of the student would."""
        closed = close_action(text, self._grammar)
        end = self._grammar.completes(closed)
        return f"{closed}{self._codec.tokenizer.eos_token}" if end is None else closed[:end]


def close_action(text: str, grammar: Grammar) -> str:
    """`text` with the closing tag of the action that it leaves open: servers do not return the stop string."""
    if grammar.completes(text) is not None:
        return text
    closed = [f"{text}{tag.closing}" for tag in grammar.actions if tag.opening in text]
    return next((whole for whole in closed if grammar.completes(whole) is not None), text)


def _search(client: RetrieverClient) -> Search:
    async def search(query: str) -> list[Passage]:
        try:
            return (await client.retrieve([query]))[0]
        except RetrieverError as error:
            raise InfraFaultError("retriever", str(error)) from error

    return search
