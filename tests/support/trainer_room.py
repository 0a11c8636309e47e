"""A trainer of the mode `agentic` whose workers are scripted, and sessions as verl's agent loops store them."""

from pathlib import Path

import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from verl_agentic.bridge.output import row_outputs
from verl_agentic.core.method import Score
from verl_agentic.core.outcomes import FaultCode, Ok
from verl_agentic.core.spans import spread
from verl_agentic.core.trajectory import Episode, RowBuilder, Turn
from verl_agentic.demo.recipe import compose_recipe

HIERARCHICAL = ("agentic.credit.name=hierarchical", "agentic.credit.process_coefficient=0.5")


def composed(*overrides):
    return compose_recipe("search_r1_cpu", overrides)


class Workers:
    """The actor's worker processes: notes what it is told to train, and in how many steps."""

    def __init__(self, ranks=1):
        self._dispatch_info = {"actor": list(range(ranks))}
        self.told = self.found = None

    def update_actor(self, batch):
        self.told = {"rows": len(batch), **batch.extra_info}
        return {"metrics": {"mfu": [0.0], "pg_loss": [0.0]}}

    def save_checkpoint(self, folder, *_, **__):
        self.found = {path.name for path in Path(folder).parent.iterdir()}

    def load_checkpoint(self, **_):
        pass


def episode(*rows):
    """A session whose rows are lists of turns: (kept ids, dropped ids, observation ids)."""
    builders = []
    for turns in rows:
        builders.append(RowBuilder(prompt_ids=[7, 8]))
        for kept, _dropped, observation in turns:
            span = builders[-1].append_policy(kept, [-0.5] * len(kept))
            builders[-1].turns.append(Turn(*span, "t", None, FaultCode.NO_ACTION, len(_dropped)))
            builders[-1].append_environment(observation)
    return Episode("q", tuple(builder.freeze() for builder in builders), Ok(), "a")


def sampled_of(*rows):
    return [token for turns in rows for kept, dropped, _ in turns for token in (*kept, *dropped)]


ONE_ROW = ([([11, 12], [], [20]), ([13], [], [])],)
TWO_ROWS = ([([11, 12], [19], [20]), ([13], [], [])], [([14, 15], [], [])])


def stored(sessions, partition="train"):
    """Puts sessions (key, rows, outcome, spans, judged) into the queue as verl's worker does; returns the batch."""
    keys, tags = [], []
    for name, rows, outcome, spans, judged in sessions:
        own = episode(*rows)
        score = Score(spread(own, outcome), {"acc": outcome}, outcome=outcome, spans=tuple(spans))
        extra = {"sampled": sampled_of(*rows), "min_global_steps": 0, "max_global_steps": 0}
        metrics = dict(zip(("judge/asked", "judge/missing"), judged, strict=True))
        outputs = row_outputs(own, score, {}, extra, metrics)
        fields = [output.as_dict() for output in outputs]
        for field, row in zip(fields, own.rows, strict=True):
            uid, session = name.split("_")
            field.update(uid=uid, index=0, session_id=int(session), data_source="demo", reward_model={})
            field["input_ids"] = torch.tensor([*row.prompt_ids, *row.response_ids])
            field["position_ids"] = torch.arange(len(field["input_ids"]))
            field["loss_mask"] = field["response_mask"]
        own_keys = [f"{name}_{number}" for number in range(len(fields))]
        own_tags = [{"status": "success", "seq_len": len(field["input_ids"])} for field in fields]
        tq.kv_batch_put(keys=own_keys, fields=list_of_dict_to_tensordict(fields), tags=own_tags, partition_id=partition)
        keys += own_keys
        tags += own_tags
    return KVBatchMeta(partition_id=partition, keys=keys, tags=tags, extra_info={"temperature": 1.0})


def plain(name, outcome, rows=ONE_ROW, spans=(), judged=(0.0, 0.0)):
    return name, rows, outcome, spans, judged


def with_log_probs(batch, shift=0.0):
    """What the workers would have computed: the rollout's log-probabilities, `shift` away in edited sessions."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rollout_log_probs"])
    edited = {key.rsplit("_", 1)[0] for key in batch.keys if not key.endswith("_0")}
    rows = [
        row + (shift if key.rsplit("_", 1)[0] in edited else 0.0)
        for key, row in zip(batch.keys, data["rollout_log_probs"].unbind(), strict=True)
    ]
    fields = list_of_dict_to_tensordict([{"old_log_probs": row} for row in rows])
    return tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)


def read(batch, field):
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=[field])
    return dict(zip(batch.keys, [row.tolist() for row in data[field].unbind()], strict=True))


def left():
    return {partition: list(keys) for partition, keys in (tq.kv_list() or {}).items() if keys}
