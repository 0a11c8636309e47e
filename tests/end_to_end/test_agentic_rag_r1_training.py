"""agentic_rag_r1 inside verl's real trainer, on the packaged cold starts, with a real retriever server.

Two steps with edits, judge and rejection are part of the default run; the policy without edits is slow-marked.
"""

import pytest

from verl_agentic.demo.prepare import PrepareConfig, prepare_cold_start

METHOD = "agentic_rag_r1"
QUESTIONS, ROLLOUTS = 4, 8
SESSIONS = QUESTIONS * ROLLOUTS
KEPT = 23  # 0.7 of 32, rounded up


@pytest.fixture(scope="module")
def demo(demo_files):
    """The demo's files with the cold starts of the method beside search_r1's."""
    for off in ((), ("backtrack", "summary")):
        start = PrepareConfig(demo_files, METHOD, off, cold_start="packaged")
        prepare_cold_start(start, line=lambda text: None)
    return demo_files


def arguments(recipe, demo, url):
    return (
        f"+recipe={recipe}",
        f"agentic.demo_dir={demo}",
        f"agentic.retriever.urls=[{url}]",
        f"data.train_batch_size={QUESTIONS}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.logger=[console,file]",
        "trainer.total_training_steps=2",
    )


def test_two_steps_of_agentic_rag_r1(main_ppo, demo, retriever_url):
    done = main_ppo(*arguments("agentic_rag_r1_cpu", demo, retriever_url))
    assert done.status == 0, done.log[-3000:]
    steps = [record["data"] for record in done.metrics]
    assert [step["training/global_step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["agentic/infra_faults"] == 0
        assert step["agentic/tokens_compared"] > 0
        # edits: more rows than sessions, and the policy saw less than it would have without them
        assert step["agentic/step/rows"] > 1.5 * SESSIONS
        assert step["agentic/rows"] == step["agentic/step/rows"] / SESSIONS
        assert step["agentic/actions/summary"] > 0.5
        assert step["agentic/context/seen"] < 0.9 * step["agentic/context/unedited"]
        # rejection
        assert step["agentic/selection/kept_fraction"] == KEPT / SESSIONS
        assert step["agentic/step/rows_trained"] < step["agentic/step/rows"]
        # the judge was asked about every search and every edit, and said something each time
        judged = sum(step[f"agentic/actions/{name}"] for name in ("search", "summary", "backtrack"))
        assert step["agentic/judge/asked"] == pytest.approx(judged)
        assert step["agentic/judge/missing_share"] == 0.0
        assert step["agentic/process/retrieval"] > 0.3
        # rollout and training agree on what was seen, in edited sessions as in unedited ones
        differences = [step[name] for name in step if name.startswith("agentic/log_prob_difference_max")]
        assert differences
        assert max(differences) < 1e-3
    assert "agentic/log_prob_difference_max_edited" in steps[0]
    assert len(done.losses) == 2


@pytest.mark.slow
def test_without_edits_agentic_rag_r1_has_one_row_a_session(main_ppo, demo, retriever_url):
    done = main_ppo(*arguments("agentic_rag_r1_no_memory_cpu", demo, retriever_url))
    assert done.status == 0, done.log[-3000:]
    for step in (record["data"] for record in done.metrics):
        assert step["agentic/step/rows"] == SESSIONS
        assert "agentic/actions/summary" not in step
        assert step["agentic/context/seen"] == step["agentic/context/unedited"]
        assert step["agentic/process/memory"] == 0.0
        assert step["agentic/selection/kept_fraction"] == KEPT / SESSIONS
