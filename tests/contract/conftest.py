"""Fixtures that several contract tests use."""

import pytest


@pytest.fixture(scope="module")
def tq():
    """A real TransferQueue in a ray of its own."""
    import ray
    import transfer_queue
    import verl  # noqa: F401
    from hydra import compose, initialize_config_module
    from verl.utils.skip import SkipManager

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=["transfer_queue.backend.SimpleStorage.num_data_storage_units=1"])
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    transfer_queue.init(config.transfer_queue)
    SkipManager.init(config)
    yield transfer_queue
    transfer_queue.close()
    ray.shutdown()


@pytest.fixture
def queue(tq):
    """The queue, emptied afterwards."""
    yield tq
    for partition, keys in (tq.kv_list() or {}).items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition)


@pytest.fixture
def trainer():
    """Makes a trainer of the mode `agentic` whose workers are scripted; its rows lie in `queue`."""

    def make(*overrides, ranks=1, **settings):
        from omegaconf import OmegaConf
        from small_tokenizers import byte_level_tokenizer
        from trainer_room import Workers, composed

        from verl_agentic.bridge.trainer import AgenticTrainer

        own = AgenticTrainer(OmegaConf.merge(composed(*overrides), settings))
        own.tokenizer, own.actor_rollout_wg, own.global_steps = byte_level_tokenizer("a"), Workers(ranks), 1
        return own

    return make
