"""`<search>` asks the retriever, `<answer>` ends the episode."""

from __future__ import annotations

from verl_agentic.core.environment import Effect, Finish, Search
from verl_agentic.core.grammar import Action
from verl_agentic.core.method import Render


class SearchEnvironment:
    """The environment of one episode.

    Args:
        search: asks the retriever one query.
        render: turns passages into an observation with the pack's templates.
    """

    def __init__(self, search: Search, render: Render):
        self._search, self._render = search, render

    async def apply(self, action: Action) -> Effect:
        if action.tag.terminal:
            return Finish(action.body)
        return self._render(await self._search(action.body))
