"""What the trainer refuses before a run, and what it remembers over a resume."""

import json

import pytest
from hydra import compose, initialize_config_module
from torchdata.stateful_dataloader import StatefulDataLoader
from trainer_room import HIERARCHICAL, composed

from verl_agentic.core.selection import SelectionState


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


def test_a_stock_configuration_gets_the_defaults():
    """Mode `agentic` with nothing of ours in the configuration, or with a part of it."""
    from verl_agentic.bridge.training_rules import trainer_settings

    for overrides in ([], ["+agentic={credit:{name:verl}}"]):
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=overrides)
        settings = trainer_settings(config)
        assert (settings.credit.name, settings.max_missing_share) == ("verl", 0.2)
        assert settings.selection.keeps_all
