"""`<search>` asks the retriever, `<answer>` ends the episode."""

from __future__ import annotations

from verl_agentic.core.environment import Effect, Finish, Tools
from verl_agentic.core.grammar import Action


class SearchEnvironment:
    """The environment of one episode.

    Args:
        tools: its search and its renderer of passages.
    """

    def __init__(self, tools: Tools):
        self._search, self._render = tools.search, tools.render

    async def apply(self, action: Action) -> Effect:
        if action.tag.terminal:
            return Finish(action.body)
        return self._render(await self._search(action.body))
