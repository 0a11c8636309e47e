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
