"""What the six actions do: `<search>` asks the retriever, edits rewrite the stack, `<conclusion>` ends the episode."""

from __future__ import annotations

from verl_agentic.core.environment import Effect, Finish, Observe, Proceed, Reject, Rewrite, Tools
from verl_agentic.core.grammar import Action
from verl_agentic.core.outcomes import FaultCode
from verl_agentic.methods.agentic_rag_r1.stack import InvalidEditError, Stack, parse_edit

SEARCH = "search"
EDITS = ("backtrack", "summary")


class StackEnvironment:
    """The environment of one episode.

    Every executed action is an entry of the stack; a search is one together with its observation. An action is applied
    whole before the next one is generated, so that an open search, one without its observation, never lies on the
    stack.

    Args:
        tools: its search and its renderer of passages.
    """

    def __init__(self, tools: Tools):
        self._search, self._render = tools.search, tools.render
        self._stack = Stack()
        self._executed = 0

    async def apply(self, action: Action) -> Effect:
        if action.tag.terminal:
            return Finish(action.body)
        if action.tag.name in EDITS:
            return self._edit(action.body)
        effect: Observe | Proceed = (
            self._render(await self._search(action.body)) if action.tag.name == SEARCH else Proceed()
        )
        self._push(self._stack)
        return effect

    def _edit(self, body: str) -> Effect:
        """Pop what the edit names and push the edit itself: the reason of a backtrack, the text of a summary."""
        try:
            below = self._stack.pop(parse_edit(body).count)
        except InvalidEditError as error:
            return Reject(FaultCode.INVALID_EDIT, error.notice)
        self._push(below)
        return Rewrite(self._stack.entries)

    def _push(self, below: Stack) -> None:
        self._stack = below.push(self._executed)
        self._executed += 1
