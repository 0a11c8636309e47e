"""Our trainer mode, our environments and our reward manager inside real verl runs.

1. mode `agentic` with nothing added equals stock `sync`, with verl's own sampler, for five steps;
2. an environment is usable from a stock configuration by `agent_name` alone;
3. the reward manager `agentic` scores verl's own single-turn loop with the method's scoring function.
"""

import pytest

from retriever_server.errors import RetrieverServerError
from retriever_server.process import start_server
from verl_agentic.data.rows import read_rows, write_rows

pytestmark = pytest.mark.slow

STOCK_SAMPLER = ("trainer.v1.sampler.custom_sampler.path=null", "trainer.v1.sampler.custom_sampler.name=null")
QUICK = ("trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[console,file]")
# What a stock configuration needs on a CPU, none of it ours.
STOCK_CPU = (
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=4",
    "data.max_prompt_length=400",
    "data.max_response_length=1600",
    "data.dataloader_num_workers=0",
    "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "actor_rollout_ref.rollout.name=hf",
    "actor_rollout_ref.rollout.n=2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.agent.num_workers=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    "reward.num_workers=1",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    "trainer.device=cpu",
    "trainer.n_gpus_per_node=1",
    "trainer.save_freq=-1",
    "trainer.total_training_steps=1",
    "ray_kwargs.ray_init.num_cpus=16",
    "+ray_kwargs.ray_init.num_gpus=1",
    *QUICK,
)


def by_identity(run):
    rows = {(r["step"], r["index"], r["session_id"]): r for r in run.rows}
    assert len(rows) == len(run.rows)
    return rows


def differing(a, b, field):
    """Keys of rows whose `field` differs, each with the first place where it does."""
    found = {}
    for key in a:
        pairs = list(zip(a[key][field], b[key][field], strict=False))
        places = [i for i, (x, y) in enumerate(pairs) if x != y]
        if places or len(a[key][field]) != len(b[key][field]):
            found[key] = places[0] if places else len(pairs)
    return found


def test_agentic_mode_equals_stock_sync(main_ppo, demo_files, retriever_url, record_property):
    common = (
        "+recipe=search_r1_cpu",
        f"agentic.demo_dir={demo_files}",
        f"agentic.retriever.urls=[{retriever_url}]",
        "data.train_batch_size=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "trainer.total_training_steps=5",
        *QUICK,
    )
    ours = main_ppo(*common)
    stock = main_ppo(*common, "trainer.v1.trainer_mode=sync", *STOCK_SAMPLER)
    assert (ours.status, stock.status) == (0, 0), (ours.log[-3000:], stock.log[-3000:])
    a, b = by_identity(ours), by_identity(stock)
    assert len(a) == 5 * 8 * 8
    assert a.keys() == b.keys()
    ids = differing(a, b, "responses")
    print(f"rows whose ids differ through batch composition: {len(ids)} of {len(a)}: {ids}")
    print("losses", [(ours.losses[s], stock.losses[s]) for s in range(1, 6)])
    assert ids == {}
    assert differing(a, b, "rm_scores") == {}
    for key in a:
        assert a[key]["advantages"] == pytest.approx(b[key]["advantages"], abs=1e-6)
    for step in range(1, 6):
        assert ours.losses[step] == pytest.approx(stock.losses[step], abs=1e-5)


def stock_rows(demo_files, path, agent_name):
    rows = [{**row, "agent_name": agent_name} for row in read_rows(demo_files / "train.parquet")]
    write_rows(path, rows)
    return (
        f"data.train_files={path}",
        f"data.val_files={path}",
        f"actor_rollout_ref.model.path={demo_files}/cold_start/search_r1",
    )


def test_an_environment_is_usable_from_a_stock_configuration_by_agent_name(main_ppo, demo_files, tmp_path):
    """Nothing of ours in the configuration: the row names the loop, the retriever is at its default address."""
    try:
        with start_server(demo_files / "index", port=8000):
            run = main_ppo(*STOCK_CPU, *stock_rows(demo_files, tmp_path / "stock.parquet", "search_r1"))
    except RetrieverServerError as error:
        pytest.skip(f"the default retriever port is taken: {error}")
    assert run.status == 0, run.log[-3000:]
    assert len(run.rows) == 8
    assert {row["outcome"] for row in run.rows} <= {"ok", "model_fault"}
    assert all(len(row["rm_scores"]) == len(row["responses"]) for row in run.rows)


def test_the_reward_manager_serves_verls_own_loop(main_ppo, demo_files, tmp_path):
    run = main_ppo(
        *STOCK_CPU,
        *stock_rows(demo_files, tmp_path / "stock.parquet", "single_turn_agent"),
        "reward.reward_manager.name=agentic",
        "+agentic={method:search_r1,prompts:demo,reward:{fault:-0.5,forgery:-0.75}}",
    )
    assert run.status == 0, run.log[-3000:]
    assert len(run.rows) == 8
    assert {row["outcome"] for row in run.rows} == {None}  # not our loop
    # without an environment a search leads nowhere: what the cold start writes is a fault, a forgery or a bare guess
    scores = {round(sum(row["rm_scores"]), 3) for row in run.rows}
    assert scores <= {-0.75, -0.5, 0.0, 1.0}
    assert scores & {-0.75, -0.5}
