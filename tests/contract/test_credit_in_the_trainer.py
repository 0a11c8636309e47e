"""The trainer's way from sampled sessions to an update, over a real TransferQueue; only the workers are scripted.

1. before anything is left out, trained tokens are the kept sampled ones, each once, over sessions of several rows;
2. advantages are over all sessions, then the left-out ones leave the queue, and nothing is left behind;
3. a step makes the recipe's number of optimizer steps, whatever its number of rows;
4. missing judgements stop a run, counters survive a resume, and a session counts once in validation.
"""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from small_tokenizers import byte_level_tokenizer
from torchdata.stateful_dataloader import StatefulDataLoader
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_agentic.bridge.output import row_outputs
from verl_agentic.core.method import Score
from verl_agentic.core.outcomes import FaultCode, Ok
from verl_agentic.core.selection import SelectionState
from verl_agentic.core.spans import SpanReward, spread
from verl_agentic.core.trajectory import Episode, RowBuilder, TokenTruthError, Turn

HIERARCHICAL = ("agentic.credit.name=hierarchical", "agentic.credit.process_coefficient=0.5")


def composed(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=["+recipe=search_r1_cpu", *overrides])


class Workers:
    """The actor's worker processes: notes what it is told to train, and in how many steps."""

    def __init__(self, ranks=1):
        self._dispatch_info = {"actor": list(range(ranks))}
        self.told = self.found = None

    def update_actor(self, batch):
        self.told = {"rows": len(batch), **batch.extra_info}
        return {"metrics": {"mfu": [0.0], "pg_loss": [0.0]}}

    def save_checkpoint(self, folder, *_, **__):
        self.found = {path.name for path in Path(folder).parent.iterdir()}

    def load_checkpoint(self, **_):
        pass


@pytest.fixture
def queue(tq):
    """The queue, emptied afterwards."""
    yield tq
    for partition, keys in (tq.kv_list() or {}).items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition)


@pytest.fixture
def trainer(queue):
    """Makes a trainer of the mode `agentic` whose workers are scripted."""

    def make(*overrides, ranks=1, **settings):
        from verl_agentic.bridge.trainer import AgenticTrainer

        own = AgenticTrainer(OmegaConf.merge(composed(*overrides), settings))
        own.tokenizer, own.actor_rollout_wg, own.global_steps = byte_level_tokenizer("a"), Workers(ranks), 1
        return own

    return make


def episode(*rows):
    """A session whose rows are lists of turns: (kept ids, dropped ids, observation ids)."""
    builders = []
    for turns in rows:
        builders.append(RowBuilder(prompt_ids=[7, 8]))
        for kept, _dropped, observation in turns:
            span = builders[-1].append_policy(kept, [-0.5] * len(kept))
            builders[-1].turns.append(Turn(*span, "t", None, FaultCode.NO_ACTION, len(_dropped)))
            builders[-1].append_environment(observation)
    return Episode("q", tuple(builder.freeze() for builder in builders), Ok(), "a")


def sampled_of(*rows):
    return [token for turns in rows for kept, dropped, _ in turns for token in (*kept, *dropped)]


ONE_ROW = ([([11, 12], [], [20]), ([13], [], [])],)
TWO_ROWS = ([([11, 12], [19], [20]), ([13], [], [])], [([14, 15], [], [])])


def stored(tq, sessions, partition="train"):
    """Puts sessions (key, rows, outcome, spans, judged) into the queue as verl's worker does; returns the batch."""
    keys, tags = [], []
    for name, rows, outcome, spans, judged in sessions:
        own = episode(*rows)
        score = Score(spread(own, outcome), {"acc": outcome}, outcome=outcome, spans=tuple(spans))
        extra = {"sampled": sampled_of(*rows), "min_global_steps": 0, "max_global_steps": 0}
        metrics = dict(zip(("judge/asked", "judge/missing"), judged, strict=True))
        outputs = row_outputs(own, score, {}, extra, metrics)
        fields = [output.as_dict() for output in outputs]
        for field, row in zip(fields, own.rows, strict=True):
            uid, session = name.split("_")
            field.update(uid=uid, index=0, session_id=int(session), data_source="demo", reward_model={})
            field["input_ids"] = torch.tensor([*row.prompt_ids, *row.response_ids])
            field["position_ids"] = torch.arange(len(field["input_ids"]))
            field["loss_mask"] = field["response_mask"]
        own_keys = [f"{name}_{number}" for number in range(len(fields))]
        own_tags = [{"status": "success", "seq_len": len(field["input_ids"])} for field in fields]
        tq.kv_batch_put(keys=own_keys, fields=list_of_dict_to_tensordict(fields), tags=own_tags, partition_id=partition)
        keys += own_keys
        tags += own_tags
    return KVBatchMeta(partition_id=partition, keys=keys, tags=tags, extra_info={"temperature": 1.0})


def plain(name, outcome, rows=ONE_ROW, spans=(), judged=(0.0, 0.0)):
    return name, rows, outcome, spans, judged


def with_log_probs(tq, batch, shift=0.0):
    """What the workers would have computed: the rollout's log-probabilities, `shift` away in edited sessions."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rollout_log_probs"])
    edited = {key.rsplit("_", 1)[0] for key in batch.keys if not key.endswith("_0")}
    rows = [
        row + (shift if key.rsplit("_", 1)[0] in edited else 0.0)
        for key, row in zip(batch.keys, data["rollout_log_probs"].unbind(), strict=True)
    ]
    fields = list_of_dict_to_tensordict([{"old_log_probs": row} for row in rows])
    return tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)


def read(tq, batch, field):
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=[field])
    return dict(zip(batch.keys, [row.tolist() for row in data[field].unbind()], strict=True))


def left(tq):
    return {partition: list(keys) for partition, keys in (tq.kv_list() or {}).items() if keys}


@pytest.mark.parametrize("seed", range(5))
def test_before_rejection_each_kept_sampled_token_is_trained_once(queue, seed):
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
    batch = stored(queue, [plain(name, 1.0, own) for name, own in sessions.items()])
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
        tq,
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
    assert sorted(left(tq)["train"]) == ["u1_0_0", "u1_0_1", "u1_1_0"]
    assert metrics["agentic/rows"] == 5
    assert metrics["agentic/tokens_compared"] == 5 + 3 + 3 + 3
    assert metrics["agentic/acc"] == 0.25
    shown = {name.removeprefix("agentic/selection/"): v for name, v in metrics.items() if "/selection/" in name}
    assert shown["kept_fraction"] == 0.5
    assert shown["kept_zero_variance"] == 0.0
    assert shown["zero_variance"] == 0.5
    assert (shown["variance/q10"], shown["variance/q90"], shown["outcome/q50"]) == (0.0, 0.25, 0.0)
    assert (shown["run/sessions"], shown["run/kept_fraction"]) == (4.0, 0.5)

    batch = own._compute_advantage(with_log_probs(tq, batch, shift=0.25), metrics)
    found = read(tq, batch, "advantages")
    # outcomes 1 and 0: z = +-0.70711; spans 1 and 0: z = +-0.70711, times 0.5 = 0.35355
    assert found["u1_0_0"] == pytest.approx([1.06066, 1.06066, 0.0, 0.70711], abs=1e-5)
    assert found["u1_0_1"] == pytest.approx([0.35355, 0.35355], abs=1e-5)
    assert found["u1_1_0"] == pytest.approx([-0.70711, -0.70711, 0.0, -0.70711], abs=1e-5)
    assert read(tq, batch, "returns") == found
    assert metrics["agentic/log_prob_difference_max"] == pytest.approx(0.25)
    assert metrics["agentic/log_prob_difference_max_edited"] == pytest.approx(0.25)
    assert metrics["agentic/log_prob_difference_max_unedited"] == 0.0

    batch = own._update_actor(batch, metrics)
    tq.kv_clear(keys=batch.keys, partition_id="train")  # as verl ends a step
    assert left(tq) == {}


def test_one_left_out_before_would_change_the_advantages(tq, trainer):
    """The best of three outcomes is kept alone: its advantage is still the one among three."""
    own = trainer(*HIERARCHICAL, "agentic.selection.rule=information", "agentic.selection.fraction=0.3")
    batch = stored(tq, [plain("u1_0", 1.0), plain("u1_1", 0.0), plain("u1_2", 0.0)])
    batch = own._balance_batch(batch, {})
    assert batch.keys == ["u1_0_0"]
    batch = own._compute_advantage(with_log_probs(tq, batch), {})
    # mean 1/3, sample variance (4/9 + 1/9 + 1/9) / 2 = 1/3; (2/3) / sqrt(1/3) = 1.1547
    assert read(tq, batch, "advantages")["u1_0_0"] == pytest.approx([1.1547, 1.1547, 0.0, 1.1547], abs=1e-4)


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
def test_a_step_makes_the_recipes_number_of_optimizer_steps(tq, trainer, ranks, sessions, padded, mini_batch):
    sizes = {
        "data": {"train_batch_size": 4},
        "actor_rollout_ref": {"rollout": {"n": 2}, "actor": {"ppo_mini_batch_size": 2}},
    }
    own = trainer(*HIERARCHICAL, ranks=ranks, **sizes)
    batch = stored(tq, [plain(f"u{i // 2}_{i % 2}", i / 8, rows) for i, rows in enumerate(sessions)])
    batch = own._balance_batch(batch, {})
    assert len(batch) == padded
    batch = own._compute_advantage(with_log_probs(tq, batch), {})
    padding = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if tag.get("is_padding")]
    assert len(padding) == padded - sum(map(len, sessions))
    found = read(tq, batch, "advantages")
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


def test_verls_own_credit_is_untouched(tq, trainer):
    """One row a session: verl's GRPO over the sum of its rewards, and nothing is left out."""
    own = trainer()
    batch = stored(tq, [plain("u1_0", 1.0), plain("u1_1", 0.0)])
    metrics = {}
    batch = own._compute_advantage(with_log_probs(tq, own._balance_batch(batch, metrics)), metrics)
    found = read(tq, batch, "advantages")
    assert found["u1_0_0"] == pytest.approx([0.70711, 0.70711, 0.0, 0.70711], abs=1e-5)
    assert not [name for name in metrics if "selection" in name]
    assert "agentic/log_prob_difference_max_edited" not in metrics


def test_rewards_that_grpo_would_not_read_are_refused(tq, trainer):
    batch = stored(tq, [plain("u1_0", 1.0, TWO_ROWS), plain("u1_1", 0.0)])
    with pytest.raises(RuntimeError, match=r"session u1_0 has rewards on an earlier row than its last.*hierarchical"):
        trainer()._balance_batch(batch, {})


def test_missing_judgements_are_shown_and_too_many_stop_the_run(tq, trainer):
    sessions = [plain("u1_0", 1.0, judged=(4.0, 1.0)), plain("u1_1", 0.0, judged=(4.0, 1.0))]
    batch = stored(tq, sessions)
    metrics = {}
    trainer("agentic.judge.max_missing_share=0.25", *HIERARCHICAL)._balance_batch(batch, metrics)
    assert metrics["agentic/judge/missing_share"] == 0.25
    with pytest.raises(RuntimeError, match=r"2 of 8 judgements of this step are missing \(25.0%\)"):
        trainer("agentic.judge.max_missing_share=0.2", *HIERARCHICAL)._balance_batch(batch, {})


def test_a_step_without_judgements_says_nothing_of_them(tq, trainer):
    metrics = {}
    trainer(*HIERARCHICAL)._balance_batch(stored(tq, [plain("u1_0", 1.0), plain("u1_1", 0.0)]), metrics)
    assert "agentic/judge/missing_share" not in metrics


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["agentic.credit.name=hierarchic"], "agentic.credit.name: unknown credit .*did you mean 'hierarchical'"),
        ([*HIERARCHICAL, "agentic.selection.rule=quantil"], "agentic.selection.rule: .*did you mean 'quantile'"),
        ([*HIERARCHICAL, "agentic.selection.fraction=1.5"], "agentic.selection.fraction must be above 0"),
        (["agentic.selection.rule=information"], "before verl computes advantages"),
        (["agentic.selection.drop_zero_variance=true"], "before verl computes advantages"),
        ([*HIERARCHICAL, "algorithm.use_kl_in_reward=true"], "algorithm.use_kl_in_reward=true would do nothing"),
        ([*HIERARCHICAL, "algorithm.adv_estimator=gae"], "uses no critic"),
        ([*HIERARCHICAL, "critic.enable=true"], "uses no critic"),
    ],
)
def test_what_does_not_go_together_is_refused_before_the_run_and_by_the_trainer(overrides, message):
    from verl_agentic.bridge.trainer import AgenticTrainer
    from verl_agentic.startup.preflight import check_settings

    config = composed(*overrides)
    for refuses in (check_settings, AgenticTrainer):
        with pytest.raises(ValueError, match=message) as refused:
            refuses(config)
        assert "\n" not in str(refused.value)


def test_counters_survive_a_resume(tmp_path, trainer):
    """verl's own checkpoint around ours: saved by one trainer, read by the next, found by itself or by its path."""
    where = {"trainer": {"default_local_dir": str(tmp_path)}}
    first = trainer(*HIERARCHICAL, **where)
    first.train_dataloader = StatefulDataLoader([1, 2, 3])
    first.global_steps = 3
    first._selection = SelectionState(steps=3, seen=24, kept=17, kept_zero_variance=2)
    first._save_checkpoint()
    # ours is whole before verl names the checkpoint the latest
    assert first.actor_rollout_wg.found == {"agentic.json"}
    assert json.loads((tmp_path / "global_step_3" / "agentic.json").read_text()) == {
        "version": 1,
        "selection": {"steps": 3, "seen": 24, "kept": 17, "kept_zero_variance": 2},
    }
    for resume in ({"resume_mode": "auto"}, _from(tmp_path / "global_step_3")):
        second = trainer(*HIERARCHICAL, trainer={**where["trainer"], **resume})
        second.train_dataloader = StatefulDataLoader([1, 2, 3])
        second._load_checkpoint()
        assert (second.global_steps, second._selection) == (3, first._selection)


def _from(folder):
    return {"resume_mode": "resume_path", "resume_from_path": str(folder)}


def test_a_checkpoint_without_counters_starts_them_anew_and_says_so(tmp_path, trainer, caplog):
    (tmp_path / "global_step_4").mkdir()
    own = trainer(*HIERARCHICAL, trainer=_from(tmp_path / "global_step_4"))
    own._load_checkpoint()
    assert (own.global_steps, own._selection) == (4, SelectionState())
    assert "agentic.json: the counters of agentic.selection start from 0" in caplog.text


def test_a_run_from_scratch_reads_nothing(tmp_path, trainer, caplog):
    own = trainer(*HIERARCHICAL, trainer={"resume_mode": "auto", "default_local_dir": str(tmp_path)})
    own._load_checkpoint()
    assert own._selection == SelectionState()
    assert "agentic.json" not in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 2, "selection": {"other": 1}}', "is of version 2 and this verl-agentic reads up to 1"),
        ('{"version": 1, "selection": {}}', "is damaged"),
        ('{"version": 1', "is damaged"),
        ("[]", "is damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, text, message):
    from verl_agentic.bridge.trainer_state import load_state

    (tmp_path / "agentic.json").write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        load_state(tmp_path)
    assert "\n" not in str(refused.value)


def test_validation_counts_a_session_once_with_the_reward_of_all_its_rows(tq, trainer):
    """Two sessions of one question, of three rows and of one: the mean is over two, not over four."""
    three = ([([11], [], [20])], [([12], [], [])], [([13], [], [])])
    own = trainer("actor_rollout_ref.rollout.val_kwargs.n=2")

    class Rollouts:
        def generate_sequences(self, batch):
            (uid,) = batch["uid"]
            stored(tq, [plain(f"{uid}_0", 0.9, three), plain(f"{uid}_1", 0.0)], partition="val")
            tq.kv_put(key=uid, partition_id="val", tag={"is_prompt": True, "status": "finished", "global_steps": 1})

    own.agent_loop_manager = Rollouts()
    own.val_dataloader = [{"raw_prompt": ["q"], "data_source": ["demo"]}]
    own.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    metrics = own._validate()
    assert metrics["val-core/demo/acc/mean@2"] == pytest.approx(0.45)
    assert metrics["val-aux/demo/reward/mean@2"] == pytest.approx(0.45)
    assert metrics["val-agentic/infra_faults"] == 0
    assert left(tq) == {}


def test_a_stock_configuration_gets_the_defaults():
    """Mode `agentic` with nothing of ours in the configuration, or with a part of it."""
    from verl_agentic.bridge.training_rules import check_training, trainer_settings

    for overrides in ([], ["+agentic={credit:{name:verl}}"]):
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=overrides)
        settings = trainer_settings(config)
        assert (settings.credit.name, settings.max_missing_share) == ("verl", 0.2)
        assert check_training(config).keeps_all
