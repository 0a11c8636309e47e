"""The trainer's way from sampled sessions to an update, over a real TransferQueue; only the workers are scripted.

1. before anything is left out, trained tokens are the kept sampled ones, each once, over sessions of several rows;
2. advantages are over all sessions, then the left-out ones leave the queue, and nothing is left behind;
3. missing judgements stop a run, and a session counts once in validation;
4. a step makes the recipe's number of optimizer steps, whatever its number of rows.
"""

import random
from types import SimpleNamespace

import pytest
from trainer_room import HIERARCHICAL, ONE_ROW, TWO_ROWS, composed, left, plain, read, stored, with_log_probs

from verl_agentic.core.spans import SpanReward
from verl_agentic.core.trajectory import TokenTruthError

pytestmark = pytest.mark.usefixtures("queue")


@pytest.mark.parametrize("seed", range(5))
def test_before_rejection_each_kept_sampled_token_is_trained_once(seed):
    """Random sessions of several rows: what is read back is what was sampled, less the dropped tails."""
    from verl_agentic.bridge.rows import by_session, check_trained_is_sampled, read_rows

    random.seed(seed)

    def ids(least, most):
        return [random.randrange(10, 99) for _ in range(random.randint(least, most))]

    def rows():
        return tuple(
            [(ids(1, 4), ids(0, 2), ids(0, 3)) for _ in range(random.randint(1, 3))]
            for _ in range(random.randint(1, 4))
        )

    sessions = {f"u{i}_0": rows() for i in range(4)}
    batch = stored([plain(name, 1.0, own) for name, own in sessions.items()])
    found = read_rows(batch)
    kept = {name: [t for turns in own for kept, _, _ in turns for t in kept] for name, own in sessions.items()}
    trained = {
        name: [t for row in own for t, m in zip(row.responses, row.mask, strict=True) if m]
        for name, own in by_session(found).items()
    }
    assert trained == kept
    assert check_trained_is_sampled(found) == sum(map(len, kept.values()))
    with pytest.raises(TokenTruthError, match="are not the"):
        check_trained_is_sampled([*found, found[-1]])


def test_advantages_are_over_all_sessions_and_the_left_out_ones_leave_the_queue(tq, trainer):
    own = trainer(*HIERARCHICAL, "agentic.selection.rule=information", "agentic.selection.fraction=0.5")
    judged = [SpanReward(0, 0, 2, 1.0, "retrieval"), SpanReward(1, 0, 2, 0.0, "memory")]
    batch = stored(
        [
            plain("u1_0", 1.0, TWO_ROWS, judged),
            plain("u1_1", 0.0),
            plain("u2_0", 0.0),
            plain("u2_1", 0.0),
        ],
    )
    metrics = {}
    batch = own._balance_batch(batch, metrics)
    # scores: u1 mean 1/2, variance 1/4: 0.5625 and 0.5; u2 0 and 0: the two sessions of u1 are kept, all their rows
    assert sorted(batch.keys) == ["u1_0_0", "u1_0_1", "u1_1_0"]
    assert sorted(left()["train"]) == ["u1_0_0", "u1_0_1", "u1_1_0"]
    assert (metrics["agentic/step/rows"], metrics["agentic/step/rows_trained"]) == (5, 3)
    assert metrics["agentic/tokens_compared"] == 5 + 3 + 3 + 3
    assert metrics["agentic/acc"] == 0.25
    shown = {name.removeprefix("agentic/selection/"): v for name, v in metrics.items() if "/selection/" in name}
    assert shown["kept_fraction"] == 0.5
    assert shown["kept_zero_variance"] == 0.0
    assert shown["zero_variance"] == 0.5
    assert (shown["variance/q10"], shown["variance/q90"], shown["outcome/q50"]) == (0.0, 0.25, 0.0)
    assert (shown["run/sessions"], shown["run/kept_fraction"]) == (4.0, 0.5)

    batch = own._compute_advantage(with_log_probs(batch, shift=0.25), metrics)
    found = read(batch, "advantages")
    # outcomes 1 and 0: z = +-0.70711; spans 1 and 0: z = +-0.70711, times 0.5 = 0.35355
    assert found["u1_0_0"] == pytest.approx([1.06066, 1.06066, 0.0, 0.70711], abs=1e-5)
    assert found["u1_0_1"] == pytest.approx([0.35355, 0.35355], abs=1e-5)
    assert found["u1_1_0"] == pytest.approx([-0.70711, -0.70711, 0.0, -0.70711], abs=1e-5)
    assert read(batch, "returns") == found
    assert metrics["agentic/log_prob_difference_max"] == pytest.approx(0.25)
    assert metrics["agentic/log_prob_difference_max_edited"] == pytest.approx(0.25)
    assert metrics["agentic/log_prob_difference_max_unedited"] == 0.0

    batch = own._update_actor(batch, metrics)
    tq.kv_clear(keys=batch.keys, partition_id="train")  # as verl ends a step
    assert left() == {}


def test_one_left_out_before_would_change_the_advantages(trainer):
    """The best of three outcomes is kept alone: its advantage is still the one among three."""
    own = trainer(*HIERARCHICAL, "agentic.selection.rule=information", "agentic.selection.fraction=0.3")
    batch = stored([plain("u1_0", 1.0), plain("u1_1", 0.0), plain("u1_2", 0.0)])
    batch = own._balance_batch(batch, {})
    assert batch.keys == ["u1_0_0"]
    batch = own._compute_advantage(with_log_probs(batch), {})
    # mean 1/3, sample variance (4/9 + 1/9 + 1/9) / 2 = 1/3; (2/3) / sqrt(1/3) = 1.1547
    assert read(batch, "advantages")["u1_0_0"] == pytest.approx([1.1547, 1.1547, 0.0, 1.1547], abs=1e-4)


def test_verls_own_credit_is_untouched(trainer):
    """One row a session: verl's GRPO over the sum of its rewards, and nothing is left out."""
    own = trainer()
    batch = stored([plain("u1_0", 1.0), plain("u1_1", 0.0)])
    metrics = {}
    batch = own._compute_advantage(with_log_probs(own._balance_batch(batch, metrics)), metrics)
    found = read(batch, "advantages")
    assert found["u1_0_0"] == pytest.approx([0.70711, 0.70711, 0.0, 0.70711], abs=1e-5)
    assert not [name for name in metrics if "selection" in name]
    assert "agentic/log_prob_difference_max_edited" not in metrics


def test_rewards_that_grpo_would_not_read_are_refused(trainer):
    batch = stored([plain("u1_0", 1.0, TWO_ROWS), plain("u1_1", 0.0)])
    with pytest.raises(RuntimeError, match=r"session u1_0 has rewards on an earlier row than its last.*hierarchical"):
        trainer()._balance_batch(batch, {})


def test_missing_judgements_are_shown_and_too_many_stop_the_run(trainer):
    sessions = [plain("u1_0", 1.0, judged=(4.0, 1.0)), plain("u1_1", 0.0, judged=(4.0, 1.0))]
    batch = stored(sessions)
    metrics = {}
    trainer("agentic.judge.max_missing_share=0.25", *HIERARCHICAL)._balance_batch(batch, metrics)
    assert metrics["agentic/judge/missing_share"] == 0.25
    with pytest.raises(RuntimeError, match=r"2 of 8 judgements of this step are missing \(25.0%\)"):
        trainer("agentic.judge.max_missing_share=0.2", *HIERARCHICAL)._balance_batch(batch, {})


def test_a_step_without_judgements_says_nothing_of_them(trainer):
    metrics = {}
    trainer(*HIERARCHICAL)._balance_batch(stored([plain("u1_0", 1.0), plain("u1_1", 0.0)]), metrics)
    assert "agentic/judge/missing_share" not in metrics


def test_validation_counts_a_session_once_with_the_reward_of_all_its_rows(tq, trainer):
    """Two sessions of one question, of three rows and of one: the mean is over two, not over four."""
    three = ([([11], [], [20])], [([12], [], [])], [([13], [], [])])
    own = trainer("actor_rollout_ref.rollout.val_kwargs.n=2")

    class Rollouts:
        def generate_sequences(self, batch):
            (uid,) = batch["uid"]
            stored([plain(f"{uid}_0", 0.9, three), plain(f"{uid}_1", 0.0)], partition="val")
            tq.kv_put(key=uid, partition_id="val", tag={"is_prompt": True, "status": "finished", "global_steps": 1})

    own.agent_loop_manager = Rollouts()
    own.val_dataloader = [{"raw_prompt": ["q"], "data_source": ["demo"]}]
    own.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    metrics = own._validate()
    assert metrics["val-core/demo/acc/mean@2"] == pytest.approx(0.45)
    assert metrics["val-aux/demo/reward/mean@2"] == pytest.approx(0.45)
    assert metrics["val-agentic/infra_faults"] == 0
    assert left() == {}


@pytest.mark.parametrize(
    ("ranks", "sessions", "padded", "mini_batch"),
    [
        (1, [ONE_ROW] * 8, 8, 4),  # as verl has it: 4 prompts x 2, mini-batches of 2 x 2
        (1, [TWO_ROWS] * 3 + [ONE_ROW] * 5, 12, 6),  # 11 rows
        (1, [TWO_ROWS] * 8, 16, 8),
        (2, [TWO_ROWS] * 5 + [ONE_ROW] * 3, 16, 8),  # 13 rows on two ranks
        (1, [ONE_ROW] * 3, 4, 2),  # groups were dropped
    ],
)
def test_a_step_makes_the_recipes_number_of_optimizer_steps(trainer, ranks, sessions, padded, mini_batch):
    sizes = {
        "data": {"train_batch_size": 4},
        "actor_rollout_ref": {"rollout": {"n": 2}, "actor": {"ppo_mini_batch_size": 2}},
    }
    own = trainer(*HIERARCHICAL, ranks=ranks, **sizes)
    batch = stored([plain(f"u{i // 2}_{i % 2}", i / 8, rows) for i, rows in enumerate(sessions)])
    batch = own._balance_batch(batch, {})
    assert len(batch) == padded
    batch = own._compute_advantage(with_log_probs(batch), {})
    padding = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding")]
    assert len(padding) == padded - sum(map(len, sessions))
    found = read(batch, "advantages")
    assert [found[key] for key in padding] == [[0.0]] * len(padding)
    own._update_actor(batch, {})
    told = own.actor_rollout_wg.told
    assert (told["mini_batch_size"], told["global_batch_size"], told["rows"]) == (mini_batch, mini_batch, padded)
    assert told["rows"] // told["mini_batch_size"] == 2
    # the configuration is as before
    assert own.config.actor_rollout_ref.actor.ppo_mini_batch_size == 2
    assert own.config.actor_rollout_ref.rollout.n == 2


def test_fixed_micro_batches_and_a_critic_divide_the_rows():
    from verl_agentic.bridge.mini_batches import even_mini_batches, row_multiple

    config = composed("data.train_batch_size=12", "actor_rollout_ref.actor.ppo_mini_batch_size=4")
    alone = {"critic": False, "reference": False}
    assert row_multiple(config, ranks=2, **alone) == 6  # three steps on two ranks
    actor, rollout, ref = (config.actor_rollout_ref[name] for name in ("actor", "rollout", "ref"))
    actor.use_dynamic_bsz = rollout.log_prob_use_dynamic_bsz = ref.log_prob_use_dynamic_bsz = False
    actor.ppo_micro_batch_size_per_gpu = 2
    rollout.log_prob_micro_batch_size_per_gpu = 4
    assert row_multiple(config, ranks=2, **alone) == 24  # each rank a multiple of 3 x 2 and of 4
    ref.log_prob_micro_batch_size_per_gpu = 5
    assert row_multiple(config, ranks=2, critic=False, reference=True) == 120
    config.critic.ppo_mini_batch_size = 5  # three steps too, the last one smaller in prompts
    config.critic.use_dynamic_bsz = False
    config.critic.ppo_micro_batch_size_per_gpu = 4
    config.critic.forward_micro_batch_size_per_gpu = 8
    assert row_multiple(config, ranks=2, critic=True, reference=False) == 48
    with even_mini_batches(config, config.critic, rows=48):
        assert (config.critic.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n) == (16, 1)
    assert (config.critic.ppo_mini_batch_size, config.actor_rollout_ref.rollout.n) == (5, 8)
