"""The sampler and the trainer's checks over a real TransferQueue: what reaches training, and what stops a run.

1. groups are whole, in data order, whatever the order in which sessions finished;
2. a group with a failed or a missing session is dropped whole, counted, and leaves nothing behind;
3. a run in which everything failed, or a program erred, ends with the cause;
4. what is trained is what was sampled, checked on the rows read back.
"""

import asyncio

import pytest
import torch
from omegaconf import OmegaConf
from tensordict import TensorDict

from verl_agentic.core.trajectory import TokenTruthError


@pytest.fixture
def store(tq):
    """Puts groups into the queue as verl's worker does, and empties the queue afterwards."""

    def put(uid, index, sessions=(0, 1), status="finished", prompt=(1, 2), partition="train", later=()):
        tq.kv_batch_put(
            keys=[uid], partition_id=partition, tags=[{"is_prompt": True, "status": status, "global_steps": 1}]
        )
        prompts = [prompt, *later]
        keys = [f"{uid}_{session}_{row}" for session in sessions for row in range(len(prompts))]
        if keys:
            fields = TensorDict(
                {
                    "index": torch.tensor([index] * len(keys)),
                    "prompts": torch.nested.as_nested_tensor(
                        [torch.tensor(p) for p in prompts] * len(sessions), layout=torch.jagged
                    ),
                },
                batch_size=len(keys),
            )
            tq.kv_batch_put(keys=keys, partition_id=partition, fields=fields, tags=[{"status": "success"}] * len(keys))

    yield put
    for partition, keys in (tq.kv_list() or {}).items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition)


def sampler(sessions_per_group=2):
    from verl_agentic.bridge.sampler import AgenticReplayBuffer

    knobs = OmegaConf.create({"poll_interval": 0.01, "sessions_per_group": sessions_per_group})
    return AgenticReplayBuffer("sync", OmegaConf.create({}), None, "drop", knobs, refill_fn=lambda n: None)


def fault(tq, key, boundary="retriever", message="connection refused"):
    from verl_agentic.bridge.faults import report_fault
    from verl_agentic.core.outcomes import InfraFault

    uid, session = key.split("_")
    config = OmegaConf.create({"trainer": {"v1": {"trainer_mode": "agentic"}}})
    row = {"uid": uid, "session_id": int(session), "global_steps": 1}
    asyncio.run(report_fault(config, row, InfraFault(boundary, message)))


def left(tq):
    return {partition: list(keys) for partition, keys in (tq.kv_list() or {}).items() if keys}


def test_rows_come_in_data_order(store):
    store("zz", 3, sessions=(1, 0))
    store("aa", 7)
    store("mm", 3, prompt=(0, 9))
    batch, metrics = sampler().sample(1, "train", 3)
    # equal indices (two data files that both count from 0) are told apart by their prompts
    assert batch.keys == ["mm_0_0", "mm_1_0", "zz_0_0", "zz_1_0", "aa_0_0", "aa_1_0"]
    assert (metrics["agentic/infra_faults"], metrics["agentic/dropped_groups"]) == (0, 0)


def test_rows_of_a_session_stay_together_in_time_order(store):
    """The prompts of later rows sort before, between and after the first ones."""
    store("zz", 3, prompt=(5, 5), later=[(9, 9), (1, 1)])
    store("aa", 3, sessions=(1, 0), prompt=(4, 4), later=[(6, 6)])
    batch, _ = sampler().sample(1, "train", 2)
    assert batch.keys == [
        *("aa_0_0", "aa_0_1", "aa_1_0", "aa_1_1"),
        *("zz_0_0", "zz_0_1", "zz_0_2", "zz_1_0", "zz_1_1", "zz_1_2"),
    ]


def test_p65_a_group_with_a_failed_session_is_dropped_whole_and_counted(store, tq):
    store("u1", 1)
    store("u2", 2, sessions=(1,), status="failure")
    fault(tq, "u2_0")
    batch, metrics = sampler().sample(1, "train", 2)
    assert batch.keys == ["u1_0_0", "u1_1_0"]
    assert (metrics["agentic/infra_faults"], metrics["agentic/dropped_groups"]) == (1, 1)
    assert left(tq) == {"train": ["u1_0_0", "u1_1_0"]}


def test_p62_p64_a_group_with_too_few_sessions_is_not_a_group(store):
    store("u1", 1)
    store("u2", 2, sessions=(0,))
    batch, metrics = sampler().sample(1, "train", 2)
    assert batch.keys == ["u1_0_0", "u1_1_0"]
    assert metrics["agentic/dropped_groups"] == 1


def test_a_step_in_which_every_session_failed_names_the_cause(store, tq):
    store("u1", 1, sessions=(), status="failure")
    fault(tq, "u1_0")
    with pytest.raises(RuntimeError, match="no group of step 1 finished: retriever: connection refused"):
        sampler().sample(1, "train", 1)


def test_a_step_in_which_every_group_failed_names_the_cause(store, tq):
    store("u1", 1, sessions=(1,), status="failure")
    fault(tq, "u1_0")
    with pytest.raises(RuntimeError, match="no group of step 1 finished: retriever: connection refused"):
        sampler().sample(1, "train", 1)


def test_an_error_of_the_program_stops_the_run(store, tq):
    store("u1", 1)
    store("u2", 2, sessions=(1,), status="failure")
    fault(tq, "u2_0", "program", "TokenTruthError: the 3 trained tokens are not the 4 kept")
    with pytest.raises(RuntimeError, match="step 1: a session ended with an error of the program: program: TokenTruth"):
        sampler().sample(1, "train", 2)


def test_validation_keeps_what_there_is_and_counts_its_faults(store, tq):
    store("u1", 1, sessions=(0,), partition="val")
    store("u2", 2, sessions=(), status="failure", partition="val")
    fault(tq, "u2_0")
    buffer = sampler()
    batch, _ = buffer.sample(1, "val", 2)
    assert batch.keys == ["u1_0_0"]
    assert [buffer.take_validation_faults(), buffer.take_validation_faults()] == [1, 0]


def test_a_stock_trainer_is_told_nothing(tq):
    from verl_agentic.bridge.faults import report_fault
    from verl_agentic.core.outcomes import InfraFault

    config = OmegaConf.create({"trainer": {"v1": {"trainer_mode": "sync"}}})
    asyncio.run(report_fault(config, {"uid": "u", "session_id": 0}, InfraFault("retriever", "x")))
    assert left(tq) == {}


def row(**changes):
    from verl_agentic.bridge.rows import TrainerRow

    extra = {"sampled": [1, 9, 2, 3], "turn_lengths": [(1, 1), (2, 0)], "reward_extra_info": {}}
    values = {
        "key": "u_0_0",
        "uid": "u",
        "index": 0,
        "responses": [1, 7, 2, 3],
        "mask": [1, 0, 1, 1],
        "rewards": [0, 0, 0, 1.0],
    }
    return TrainerRow(**{**values, "extra": {**extra, **changes.pop("extra", {})}, **changes})


def test_trained_tokens_are_the_sampled_ones_less_the_dropped_tails():
    from verl_agentic.bridge.rows import check_trained_is_sampled

    assert check_trained_is_sampled([row()]) == 3
    assert check_trained_is_sampled([row(extra={"sampled": None})]) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"responses": [1, 7, 2, 4]}, "3 trained tokens are not the 3 sampled"),
        ({"responses": [9, 7, 2, 3]}, "3 trained tokens are not the 3 sampled"),
        ({"mask": [1, 1, 1, 1]}, "4 trained tokens are not the 3 sampled"),
        ({"rewards": [0, 0.5, 0, 1.0]}, "a reward lies on a token that is not trained"),
        ({"extra": {"turn_lengths": [(1, 0), (2, 0)]}}, "account for 3 sampled tokens, generation returned 4"),
    ],
)
def test_the_trainer_refuses_tokens_that_were_not_sampled(changes, message):
    from verl_agentic.bridge.rows import check_trained_is_sampled

    with pytest.raises(TokenTruthError, match=message):
        check_trained_is_sampled([row(**changes)])


def test_session_metrics_are_means_over_sessions():
    from verl_agentic.bridge.step_metrics import session_metrics

    rows = [
        row(extra={"reward_extra_info": {"em": 1.0}, "fault": None, "tags_seen": 2, "actions": {"search": 1}}),
        row(key="u_1_0", extra={"reward_extra_info": {"em": 0.0}, "fault": "no_action", "tags_seen": 2, "actions": {}}),
    ]
    assert session_metrics(rows) == {
        "agentic/em": 0.5,
        "agentic/fault/no_action": 0.5,
        "agentic/markup_without_action": 0.5,
    }
    assert session_metrics([]) == {}


def test_p56_every_policy_token_gets_the_return_across_an_observation():
    """gamma 1: the reward at the end reaches the tokens before the observation."""
    from verl.trainer.ppo.core_algos import compute_gae_advantage_return

    mask = torch.tensor([[1.0, 1, 0, 0, 1, 1]])
    rewards = torch.tensor([[0.0, 0, 0, 0, 0, 1]])
    _, returns = compute_gae_advantage_return(rewards, torch.zeros(1, 6), mask, gamma=1.0, lam=1.0)
    assert (returns * mask).tolist() == [[1.0, 1.0, 0.0, 0.0, 1.0, 1.0]]
