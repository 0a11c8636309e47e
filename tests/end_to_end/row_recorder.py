"""Loaded into every process of a run by VERL_USE_EXTERNAL_MODULES: writes what the actor is about to be trained on.

It reads the rows back from TransferQueue just before verl's own `_update_actor`, in stock and in our trainer mode
alike, so that two runs can be compared token by token.
"""

import json
import os

import wrapt


@wrapt.when_imported("verl.trainer.ppo.v1.trainer_base")
def _record_updates(module):
    original = module.PPOTrainer._update_actor

    def recording(self, batch, metrics):
        _write(self.global_steps, batch)
        batch = original(self, batch, metrics)
        _append({"step": self.global_steps, "loss": metrics["actor/pg_loss"]})
        return batch

    module.PPOTrainer._update_actor = recording


def _write(step, batch):
    import transfer_queue as tq

    fields = ["index", "session_id", "prompts", "responses", "response_mask", "rm_scores", "advantages", "extra_fields"]
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    columns = {name: list(data[name]) for name in fields}
    for i in range(len(keys)):
        row = {name: _plain(columns[name][i]) for name in fields}
        extra = row.pop("extra_fields")
        _append({"step": step, **row, "outcome": extra.get("outcome"), "judge": extra.get("judge")})


def _plain(value):
    value = getattr(value, "data", value) if not hasattr(value, "tolist") else value
    return value.tolist() if hasattr(value, "tolist") else value


def _append(record):
    with open(os.environ["ROW_RECORD"], "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
