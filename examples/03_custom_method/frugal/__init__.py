"""frugal: search_r1's actions, with a price on every search.

A method is its grammar, its environment, its prompts and one pure scoring function.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_agentic.core.answers import exact_match
from verl_agentic.core.environment import Effect, Finish, Tools
from verl_agentic.core.grammar import Action, ActionTag, Grammar
from verl_agentic.core.judging import Judgement
from verl_agentic.core.method import Method, Score
from verl_agentic.core.rewards import outcome_rewards
from verl_agentic.core.trajectory import Episode


class Environment:
    """`<search>` asks the retriever, `<answer>` ends the episode."""

    def __init__(self, tools: Tools):
        self._search, self._render = tools.search, tools.render

    async def apply(self, action: Action) -> Effect:
        if action.tag.terminal:
            return Finish(action.body)
        return self._render(await self._search(action.body))


def score(
    episode: Episode, golds: Sequence[str], knobs: Mapping[str, Any], judgements: Sequence[Judgement] = ()
) -> Score:
    """Exact match less `knobs["price"]` a search, on the last token the policy wrote."""
    em = exact_match(episode.prediction or "", golds)
    searches = float(episode.actions.get("search", 0))
    reward = em - knobs["price"] * searches
    return Score(outcome_rewards(episode, reward), {"acc": em, "em": em, "searches": searches, "net": reward})


METHOD = Method(
    name="frugal",
    grammar=Grammar(actions=(ActionTag("search"), ActionTag("answer", terminal=True))),
    prompts=Path(__file__).parent / "prompts",
    environment=Environment,
    score=score,
)
