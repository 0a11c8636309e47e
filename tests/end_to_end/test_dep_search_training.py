"""dep_search inside verl's real trainer, on its packaged cold start, with a real retriever server that embeds."""

import pytest

from verl_agentic.demo.prepare import PrepareConfig, prepare_cold_start

METHOD = "dep_search"
QUESTIONS, ROLLOUTS = 4, 8
SESSIONS = QUESTIONS * ROLLOUTS


@pytest.fixture(scope="module")
def demo(demo_files):
    """The demo's files with the method's cold start."""
    prepare_cold_start(PrepareConfig(demo_files, METHOD, cold_start="packaged"), line=lambda text: None)
    return demo_files


def arguments(recipe, demo, url):
    return (
        f"+recipe={recipe}",
        f"agentic.demo_dir={demo}",
        f"agentic.retriever.urls=[{url}]",
        # Questions with shared sub-answers alone: every session has several steps.
        f"data.train_files=[{demo}/train_shared.parquet]",
        f"data.train_batch_size={QUESTIONS}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "trainer.val_before_train=false",
        "trainer.test_freq=-1",
        "trainer.logger=[console,file]",
        "trainer.total_training_steps=2",
    )


def test_two_steps_of_dep_search(main_ppo, demo, retriever_url):
    done = main_ppo(*arguments("dep_search_cpu", demo, retriever_url))
    assert done.status == 0, done.log[-3000:]
    steps = [record["data"] for record in done.metrics]
    assert [step["training/global_step"] for step in steps] == [1, 2]
    for step in steps:
        assert step["agentic/infra_faults"] == 0
        assert step["agentic/tokens_compared"] > 0
        assert step["agentic/actions/Decompose"] > 0.5
        assert step["agentic/actions/Conclusion"] > 0.5
        # the summaries were written, and filled the memories
        assert step["agentic/conclusion/tokens"] > 3.0
        assert step["agentic/memory/stored"] > 0.5
        assert step["agentic/penalty/decomposition"] >= 0.0
        # a conclusion leaves the context as it is: one row a session
        assert step["agentic/step/rows"] == SESSIONS
        assert step["agentic/log_prob_difference_max"] < 1e-3
    assert len(done.losses) == 2
    assert len(done.rows) == 2 * SESSIONS


@pytest.mark.slow
def test_the_printed_penalty_takes_part_in_the_loss(main_ppo, demo, retriever_url):
    done = main_ppo(
        *arguments("dep_search_kl_paper_cpu", demo, retriever_url), "actor_rollout_ref.actor.ppo_mini_batch_size=2"
    )
    assert done.status == 0, done.log[-3000:]
    for step in (record["data"] for record in done.metrics):
        # of two optimizer steps a batch the second is against an older policy
        assert 0.0 < step["actor/kl_to_old"] < 1.0
