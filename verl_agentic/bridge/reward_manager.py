"""verl reward manager `agentic`: a method's scoring function for verl's own single-turn loop.

Our own agent loops call the scoring function themselves and never come here. verl lets a manager assign one scalar a
session, which is the sum of the method's per-token rewards.
"""

from __future__ import annotations

from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from verl_agentic.bridge.codec import TokenizerCodec
from verl_agentic.bridge.judging import judgements, make_judge
from verl_agentic.bridge.settings import load_settings
from verl_agentic.core.items import question_and_golds
from verl_agentic.core.replay import episode_from_response
from verl_agentic.core.rewards import total
from verl_agentic.methods import load_method


@register("agentic")
class AgenticRewardManager(RewardManagerBase):
    """Scores a session's last row with the scoring function of `agentic.method`."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_: Any):
        super().__init__(config, tokenizer, compute_score)
        self.settings = load_settings(config)
        self.method = load_method(self.settings.method)
        self.method.check_knobs(self.settings.reward)
        self.judge = make_judge(self.settings, self.method)
        self.codec = TokenizerCodec(tokenizer)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Score one session.

        Args:
            data: its rows; of the last one `responses`, `response_len` and the data row's own fields are read.

        Returns:
            `reward_score`, the sum of the per-token rewards, and `reward_extra_info`, the method's scalars.
        """
        item = data[-1]
        ids = item.batch["responses"][: int(item.non_tensor_batch["response_len"])].tolist()
        question, golds = question_and_golds(item.non_tensor_batch)
        visible = ids[:-1] if ids and ids[-1] in self.codec.eos_ids else ids
        episode = episode_from_response(question, self.codec.decode(visible), ids, self.method.grammar)
        answers = await judgements(self.judge, self.method, episode, golds, self.settings)
        score = self.method.score(episode, golds, self.settings.reward, answers)
        return {"reward_score": total(score.rewards), "reward_extra_info": score.metrics}
