"""What is checked after the configuration is composed and before anything long is started.

Recipes hang `Preflight` into Hydra's callbacks. A failed check prints one sentence and ends the process: Hydra turns an
ordinary exception of a callback into a warning, so `SystemExit` is raised.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, ListConfig

from verl_agentic.core.suggest import did_you_mean

TRAINING_MODULES = ("transfer_queue", "zmq", "msgspec", "fastapi", "uvicorn", "cachetools")
# Rollouts that take per-request stop strings and seeds as the turn engine sends them, and the package each needs.
ROLLOUTS = {"vllm": "vllm", "hf": None}
# verl asks ray for a bundle of this many CPU slots with each worker process (ResourcePoolManager.max_colocate_count).
SLOTS_PER_WORKER = 3
LOCAL_PREFIXES = ("/", "./", "../", "~")


class PreflightError(RuntimeError):
    """A check failed; the message is the sentence to show."""


class Preflight(Callback):
    """Hydra callback of the recipes."""

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """Run all checks; on the first failure print it and end the process with status 1."""
        if not config.agentic.preflight:
            return
        try:
            run_checks(config)
        except (PreflightError, ValueError) as error:
            _refuse(str(error), error)
        except Exception as error:
            _refuse(
                f"a check before the run failed with {type(error).__name__}: {error}; agentic.preflight=false skips it",
                error,
            )
        print("verl-agentic: preflight passed (packages, settings, ray slots, data rows, model, retriever, judge)")


def _refuse(reason: str, cause: Exception) -> NoReturn:
    print(f"verl-agentic: {' '.join(reason.split())}", file=sys.stderr)
    raise SystemExit(1) from cause


def run_checks(config: DictConfig) -> None:
    """Every check in turn, the cheap ones first.

    Raises:
        PreflightError, ValueError: the first check that failed, as one sentence.
    """
    checks: list[Callable[[DictConfig], None]] = [
        check_packages,
        check_settings,
        check_ray_slots,
        check_data,
        check_model,
        check_retriever,
        check_judge,
    ]
    for check in checks:
        check(config)


def check_packages(config: DictConfig) -> None:
    """The packages that the chosen rollout and trainer import are there."""
    rollout = config.actor_rollout_ref.rollout.name
    if rollout not in ROLLOUTS:
        raise PreflightError(
            f"actor_rollout_ref.rollout.name={rollout} is not supported{did_you_mean(str(rollout), ROLLOUTS)}; use "
            "vllm on GPUs or hf on a CPU, which take per-request stop strings and seeds"
        )
    module = ROLLOUTS[rollout]
    missing = [name for name in TRAINING_MODULES if find_spec(name) is None]
    if missing:
        raise PreflightError(
            f"verl's trainer needs the package {missing[0]!r}, which is missing; run pip install 'verl-agentic[train]'"
        )
    if module and find_spec(module) is None:
        raise PreflightError(
            f"actor_rollout_ref.rollout.name={rollout} needs the package {module!r}, which is missing; run pip install "
            f"'verl-agentic[{module}]', or choose a recipe with the suffix _cpu on a machine without a GPU"
        )


def check_settings(config: DictConfig) -> None:
    """Our own settings: known keys, an existing method and prompt pack, budgets that fit, credit and selection."""
    from verl_agentic.bridge.prompts import load_pack
    from verl_agentic.bridge.settings import load_settings
    from verl_agentic.bridge.training_rules import trainer_settings
    from verl_agentic.methods import load_method

    settings = load_settings(config)
    method = load_method(settings.method)
    method.check_knobs(settings.reward)
    method.check_environment(settings.environment)
    load_pack(method.prompts, settings.prompts)
    trainer_settings(config)


def check_ray_slots(config: DictConfig) -> None:
    """A local ray has the CPU and GPU slots that the run will ask for; without them verl waits for ever."""
    init = config.ray_kwargs.ray_init
    if init.get("address"):
        return
    workers = config.trainer.n_gpus_per_node * config.trainer.nnodes
    storage = config.transfer_queue.backend.SimpleStorage.num_data_storage_units
    need = SLOTS_PER_WORKER * workers + storage + 1
    have = init.get("num_cpus") or os.cpu_count() or 1
    if config.trainer.nnodes == 1 and have < need:
        raise PreflightError(
            f"ray has {have} CPU slots and this run asks for {need} ({SLOTS_PER_WORKER} for each of {workers} worker "
            f"processes, {storage} storage units, 1 for the trainer); set ray_kwargs.ray_init.num_cpus={need} or lower "
            "transfer_queue.backend.SimpleStorage.num_data_storage_units"
        )


def check_data(config: DictConfig) -> None:
    """Every row of the training and validation files is well formed."""
    from verl_agentic.data.rows import read_rows

    for files in (config.data.train_files, config.data.val_files):
        for file in files if isinstance(files, (list, ListConfig)) else [files]:
            read_rows(Path(str(file)).expanduser())


def check_model(config: DictConfig) -> None:
    """The model's folder exists, its chat template only appends, and the method's tags survive its tokenizer."""
    from verl_agentic.bridge.codec import TokenizerCodec, check_append_only
    from verl_agentic.methods import load_method

    tokenizer = _load_tokenizer(config)
    custom = config.actor_rollout_ref.model.get("custom_chat_template")
    if custom:
        tokenizer.chat_template = custom
    codec = TokenizerCodec(tokenizer, config.data.get("apply_chat_template_kwargs") or {})
    check_append_only(codec)
    check_tags(codec, load_method(config.agentic.method).grammar)


def _load_tokenizer(config: DictConfig) -> Any:
    from transformers import AutoTokenizer

    model = config.actor_rollout_ref.model
    path = str(model.path)
    local = path.startswith(LOCAL_PREFIXES) or path.count("/") > 1
    if local and not Path(path).expanduser().is_dir():
        raise PreflightError(f"actor_rollout_ref.model.path: there is no folder {path}{_preparation(config)}")
    try:
        return AutoTokenizer.from_pretrained(
            model.get("tokenizer_path") or path, trust_remote_code=model.get("trust_remote_code", False)
        )
    except Exception as error:
        raise PreflightError(
            f"actor_rollout_ref.model.path: no tokenizer could be loaded from {path} ({str(error).splitlines()[0]}); "
            "give a folder, or a hub id that this machine can reach"
        ) from error


def check_tags(codec: Any, grammar: Any) -> None:
    """Each action of the grammar is found again after a trip through the tokenizer."""
    for tag in grammar.actions:
        text = (
            f"<think> a </think> {tag.opening} a {tag.closing}" if grammar.think else f"{tag.opening} a {tag.closing}"
        )
        parsed = grammar.parse(codec.decode(codec.encode(text)))
        if parsed.action is None or parsed.action.tag != tag:
            raise PreflightError(
                f"the model's tokenizer does not give back the tag {tag.opening}: {text!r} became "
                f"{codec.decode(codec.encode(text))!r}, so no action could ever be executed"
            )


def check_retriever(config: DictConfig) -> None:
    """Every retriever server answers, finds its own canaries, is fast enough and embeds where the method needs it.

    What was found is printed.
    """
    from verl_agentic.bridge.settings import load_settings
    from verl_agentic.clients.errors import RetrieverError
    from verl_agentic.clients.retriever import RetrieverClient
    from verl_agentic.methods import load_method

    settings = load_settings(config)
    retriever = settings.retriever
    client = RetrieverClient(
        retriever.urls, retriever.topk, retriever.timeout_s, retriever.deadline_s, retriever.retries
    )
    try:
        found = client.check_startup(
            concurrent=retriever.check_concurrent, min_queries_per_s=retriever.min_queries_per_s
        )
    except RetrieverError as error:
        raise PreflightError(str(error)) from error
    for server in found:
        print(f"verl-agentic: {server}")
    if load_method(settings.method).embeds(settings.environment):
        _check_vectors(settings)


def _check_vectors(settings: Any) -> None:
    from verl_agentic.clients.errors import RetrieverError
    from verl_agentic.clients.retriever import RetrieverClient

    retriever = settings.retriever
    for url in retriever.urls:
        client = RetrieverClient([url], None, retriever.timeout_s, retriever.deadline_s, retriever.retries)
        try:
            asyncio.run(_embed_once(client))
        except RetrieverError as error:
            raise PreflightError(
                f"the memory of {settings.method} needs vectors: {error}; start the server with `serve --embedder "
                "NAME`, or set agentic.retriever.urls"
            ) from error


async def _embed_once(client: Any) -> None:
    try:
        await client.embed(["ready"])
    finally:
        await client.aclose()


def check_judge(config: DictConfig) -> None:
    """Where the reward needs a judge, it can be made, and an endpoint gives verdicts; what was found is printed."""
    from verl_agentic.bridge.judging import ENDPOINT, make_judge
    from verl_agentic.bridge.settings import load_settings
    from verl_agentic.methods import load_method

    settings = load_settings(config)
    method = load_method(settings.method)
    judge = make_judge(settings, method)
    if judge is None:
        return
    if settings.judge.scorer == ENDPOINT:
        _check_endpoint(judge)
    print(f"verl-agentic: judge of {', '.join(method.judged_kinds(settings.reward))}: {judge.name}")


def _check_endpoint(judge: Any) -> None:
    from verl_agentic.clients.errors import ChatError
    from verl_agentic.clients.judge_check import check_judge_endpoint

    try:
        asyncio.run(check_judge_endpoint(judge))
    except ChatError as error:
        raise PreflightError(str(error)) from error


def _preparation(config: DictConfig) -> str:
    if config.actor_rollout_ref.rollout.name == "hf":
        return "; make the demo's with `python -m verl_agentic.demo prepare`"
    return ""
