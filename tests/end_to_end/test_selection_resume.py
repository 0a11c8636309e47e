"""Credit over sessions and selection inside verl's real trainer, over a resume."""

import pytest

pytestmark = pytest.mark.slow

QUESTIONS, ROLLOUTS = 4, 4
SESSIONS = QUESTIONS * ROLLOUTS


def test_selection_goes_on_where_it_stopped(main_ppo, demo_files, retriever_url, tmp_path):
    """Two steps, then a third in a new run from the checkpoint: counters go on, and each step trains half."""
    common = (
        "+recipe=search_r1_cpu",
        f"agentic.demo_dir={demo_files}",
        f"agentic.retriever.urls=[{retriever_url}]",
        "agentic.credit.name=hierarchical",
        "agentic.selection.rule=information",
        "agentic.selection.fraction=0.5",
        f"data.train_batch_size={QUESTIONS}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        f"actor_rollout_ref.rollout.n={ROLLOUTS}",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.save_freq=1",
        "trainer.resume_mode=auto",
        f"trainer.default_local_dir={tmp_path}/checkpoints",
        "trainer.logger=[console,file]",
    )
    first = main_ppo(*common, "trainer.total_training_steps=2")
    assert first.status == 0, first.log[-3000:]
    then = main_ppo(*common, "trainer.total_training_steps=3")
    assert then.status == 0, then.log[-3000:]
    steps = [record["data"] for record in first.metrics + then.metrics]
    assert [step["training/global_step"] for step in steps] == [1, 2, 3]
    assert [step["agentic/selection/run/sessions"] for step in steps] == [SESSIONS, 2 * SESSIONS, 3 * SESSIONS]
    assert [step["agentic/selection/kept_fraction"] for step in steps] == [0.5] * 3
    assert steps[-1]["agentic/selection/run/kept_fraction"] == 0.5
    assert len(first.rows) == SESSIONS
    assert len(then.rows) == SESSIONS / 2
