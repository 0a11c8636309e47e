"""verl's two ends of the rollout named `hf`: the replica that starts the server, the adapter that feeds it weights."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica
from verl.workers.rollout.utils import ensure_async_iterator

from verl_agentic.cpu.rollout_config import EngineSettings, check_rollout_config
from verl_agentic.cpu.server import EmbeddedServer, ServerConfig


def server_name(replica_rank: int, role: str = "", suffix: str = "") -> str:
    """Name of the server's ray actor, by which the trainer's side finds it."""
    return f"hf_server_{role}{replica_rank}{suffix}"


def server_config(config: RolloutConfig, model_config: Any) -> ServerConfig:
    """verl's configuration of rollout and model (dataclass or mapping) as the server's own."""
    model = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
    same = "max_model_len max_num_seqs max_num_batched_tokens prompt_length response_length repetition_penalty"
    return ServerConfig(
        model_path=model.local_path,
        hf_config=model.hf_config,
        tokenizer=model.tokenizer,
        trust_remote_code=model.trust_remote_code,
        dtype=PrecisionType.to_dtype(config.dtype),
        settings=EngineSettings.parse(dict(config.engine_kwargs.get("hf", None) or {})),
        **{name: config[name] for name in (*same.split(), "ignore_eos", "free_cache_engine")},
    )


class EmbeddedReplica(RolloutReplica):
    """One server actor on transformers; the model is not sharded, so a replica is one process."""

    def __init__(self, replica_rank: int, config: Any, model_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(replica_rank, config, model_config, *args, **kwargs)
        check_rollout_config(self.config, model_config)
        self._server_config = server_config(self.config, model_config)

    async def launch_servers(self) -> None:
        """Start the server.

        Does not wait for it to load its model: verl's first call to it is the weight update before the first step,
        which waits, and until then the agent loop workers start beside it. A failure to load surfaces in that call.
        """
        role = "reward_" if self.is_reward_model else "teacher_" if self.is_teacher_model else ""
        # No CPU slot: it generates while the trainer waits, and trains never at the same time.
        options = {
            "name": server_name(self.replica_rank, role, self.name_suffix),
            "max_concurrency": self.max_concurrency,
            "num_cpus": 0,
        }
        server = ray.remote(EmbeddedServer).options(**options).remote(self._server_config)
        self.servers = [server]
        self._server_handle = server
        self._server_address = f"hf://{options['name']}"

    async def abort_all_requests(self, reject_request: bool = False) -> dict[str, Any]:
        """End all requests; see `EmbeddedServer.abort_all_requests`."""
        return await self._server_handle.abort_all_requests.remote(reject_request=reject_request)

    async def abort_request(self, request_id: str) -> dict[str, Any]:
        """End one request; see `EmbeddedServer.abort_request`."""
        return await self._server_handle.abort_request.remote(request_id)


class EmbeddedRollout(BaseRollout):
    """Hands the trainer's weights to the server; runs in the trainer's worker process.

    Args:
        config: verl's rollout configuration.
        model_config: verl's model configuration.
        device_mesh: unused, the server is not sharded.
        replica_rank: which server; this worker's rank where -1.
    """

    is_leader_rank = True

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server: Any = None

    @property
    def _handle(self) -> Any:
        # Looked up late: verl starts the server after this object.
        if self._server is None:
            self._server = ray.get_actor(server_name(self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        """Wake the server up for the given tags ("weights", "kv_cache")."""
        await self._handle.wake_up.remote(tags=tags)

    async def release(self) -> None:
        """Put the server to sleep."""
        await self._handle.sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        wire_format: str = "named_tensors",
        global_steps: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Send all weights to the server, in buckets of `checkpoint_engine.update_weights_bucket_megabytes`.

        Args:
            weights: (name, tensor) pairs, full tensors.
            wire_format: only "named_tensors".
            global_steps: version reported with every output from then on.

        Raises:
            NotImplementedError: another wire format.
        """
        if wire_format != "named_tensors":
            raise NotImplementedError(
                f"the rollout 'hf' takes full tensors, not {wire_format!r}: set rollout.checkpoint_engine.backend=naive"
            )
        limit = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20
        bucket: list[tuple[str, torch.Tensor]] = []
        size = 0
        async for name, tensor in ensure_async_iterator(weights):
            # Copied: the trainer may change or free the tensor before ray has serialised it.
            bucket.append((name, tensor.detach().to("cpu", copy=True)))
            size += tensor.nbytes
            if size >= limit:
                await self._handle.update_weights.remote(bucket, global_steps, last=False)
                bucket, size = [], 0
        await self._handle.update_weights.remote(bucket, global_steps, last=True)
