"""Bad input is refused before any long work: one clear sentence, non-zero exit."""

import re
import shutil

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict

from retriever_server.process import start_server
from verl_agentic.bridge.settings import default_agentic
from verl_agentic.data.rows import read_rows
from verl_agentic.demo.prepare import PrepareConfig, packaged_cold_start, prepare
from verl_agentic.demo.run import SERVER_OPTIONS, build_index
from verl_agentic.demo.splits import SplitSizes
from verl_agentic.startup import preflight
from verl_agentic.startup.preflight import Preflight


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    sizes = SplitSizes(train=16, val=4, test=8, long_train=2, long_test=2, shared_train=2, shared_test=2)
    prepare(PrepareConfig(out=out, splits=sizes, cold_start="packaged"), line=lambda text: None)
    return out


@pytest.fixture(scope="module")
def composed():
    import verl  # noqa: F401  (loads the plugin, which makes recipes known to Hydra)

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=["+recipe=search_r1_cpu"])


@pytest.fixture
def config(composed, demo):
    changed = OmegaConf.create(OmegaConf.to_container(composed, resolve=False))
    changed.agentic.demo_dir = str(demo)
    changed.agentic.retriever.urls = ["http://127.0.0.1:9"]
    changed.agentic.retriever.timeout_s = 2.0
    return changed


def refused(config, capsys):
    with pytest.raises(SystemExit) as ended:
        Preflight().on_job_start(config)
    assert ended.value.code == 1
    sentence = capsys.readouterr().err.strip()
    assert "\n" not in sentence
    assert sentence.startswith("verl-agentic: ")
    return sentence


def test_everything_in_order_passes_and_says_so(config, demo, capsys):
    with start_server(build_index(demo, line=lambda text: None)) as server:
        config.agentic.retriever.urls = [server.url]
        Preflight().on_job_start(config)
        passed = capsys.readouterr().out
        assert re.search(rf"verl-agentic: retriever at {server.url}: .*; \d+ queries/s at 8 at a time\n", passed)
        assert "preflight passed" in passed
        config.agentic.retriever.min_queries_per_s = 1e9
        sentence = refused(config, capsys)
    assert f"retriever at {server.url} answers " in sentence
    assert " queries/s at 8 at a time, agentic.retriever.min_queries_per_s asks for 1e+09; add servers to" in sentence


def test_a_memory_needs_a_retriever_that_embeds(config, demo, capsys):
    config.actor_rollout_ref.model.path = str(packaged_cold_start("search_r1"))  # it has the tags of every method
    config.agentic.method, config.agentic.reward = "dep_search", default_agentic("dep_search").reward
    config.agentic.environment = default_agentic("dep_search").environment
    with start_server(build_index(demo, line=lambda text: None)) as server:
        config.agentic.retriever.urls = [server.url]
        sentence = refused(config, capsys)
        assert f"the memory of dep_search needs vectors: retriever at {server.url} answers 404" in sentence
        assert "start the server with `serve --embedder NAME`" in sentence
        config.agentic.environment.store = "nothing"
        Preflight().on_job_start(config)
    with start_server(build_index(demo, line=lambda text: None), options=SERVER_OPTIONS) as server:
        config.agentic.retriever.urls, config.agentic.environment.store = [server.url], "conclusions"
        Preflight().on_job_start(config)


def test_a_retriever_that_is_down(config, capsys):
    sentence = refused(config, capsys)
    assert "retriever at http://127.0.0.1:9" in sentence
    assert "python -m retriever_server serve" in sentence


def test_a_wrong_data_row_is_named_with_row_and_field(config, demo, tmp_path, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = read_rows(demo / "train.parquet")
    rows[2]["reward_model"]["ground_truth"]["target"] = []
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "bad.parquet")
    config.data.train_files = str(tmp_path / "bad.parquet")
    assert re.search(
        r"row 3 of .*bad.parquet: field reward_model.ground_truth.target is empty", refused(config, capsys)
    )


def test_p42_a_file_that_is_no_data_set(config, tmp_path, capsys):
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "contents": "x"}\n')
    config.data.val_files = [str(tmp_path / "corpus.jsonl")]
    assert "is not a readable parquet file" in refused(config, capsys)


def test_a_chat_template_that_is_not_append_only(config, demo, tmp_path, capsys):
    model = shutil.copytree(demo / "cold_start" / "search_r1", tmp_path / "model")
    template = (model / "chat_template.jinja").read_text()
    (model / "chat_template.jinja").write_text("{% if messages|length > 1 %}now {% endif %}" + template)
    config.actor_rollout_ref.model.path = str(model)
    assert "chat template is not append-only" in refused(config, capsys)


def test_p17_a_tokenizer_that_loses_the_methods_tags(config, demo, tmp_path, capsys):
    model = shutil.copytree(demo / "cold_start" / "search_r1", tmp_path / "model")
    file = model / "tokenizer.json"
    file.write_text(file.read_text().replace('"<search>"', '"<lookup>"'))
    config.actor_rollout_ref.model.path = str(model)
    assert "does not give back the tag <search>" in refused(config, capsys)


def test_p69_too_few_ray_slots(config, capsys):
    config.ray_kwargs.ray_init.num_cpus = 2
    sentence = refused(config, capsys)
    assert "ray has 2 CPU slots and this run asks for 5" in sentence
    assert "ray_kwargs.ray_init.num_cpus=5" in sentence


def test_a_missing_optional_package(config, capsys):
    config.actor_rollout_ref.rollout.name = "vllm"
    sentence = refused(config, capsys)
    assert "needs the package 'vllm', which is missing" in sentence
    assert "pip install 'verl-agentic[vllm]'" in sentence


def test_a_rollout_that_is_not_supported(config, capsys):
    config.actor_rollout_ref.rollout.name = "sglang"
    assert "actor_rollout_ref.rollout.name=sglang is not supported" in refused(config, capsys)


def test_a_model_that_cannot_be_had(config, monkeypatch, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    config.actor_rollout_ref.model.path = "nobody/no-such-model"
    assert "no tokenizer could be loaded from nobody/no-such-model" in refused(config, capsys)


def test_reward_knobs_that_make_no_sense(config, capsys):
    config.agentic.reward.metric = "EM"
    assert "agentic.reward.metric: unknown metric 'EM'" in refused(config, capsys)


def test_an_unforeseen_error_of_a_check_stops_the_run_too(config, monkeypatch, capsys):
    def broken(config):
        raise KeyError("oops")

    monkeypatch.setattr(preflight, "check_model", broken)
    assert "a check before the run failed with KeyError: 'oops'" in refused(config, capsys)


def test_a_missing_package_of_the_trainer(config, monkeypatch, capsys):
    monkeypatch.setattr(preflight, "TRAINING_MODULES", ("no_such_package_of_ours",))
    assert "pip install 'verl-agentic[train]'" in refused(config, capsys)


def test_a_model_folder_that_is_not_there(config, capsys):
    config.actor_rollout_ref.model.path = "runs/nowhere/model"
    assert "there is no folder runs/nowhere/model; make the demo's with" in refused(config, capsys)


def test_an_unknown_key_below_agentic(config, capsys):
    with open_dict(config):
        config.agentic.retriever.topkk = 3
    assert "unknown key agentic.retriever.topkk; did you mean 'topk'" in refused(config, capsys)


def test_preflight_can_be_switched_off(config):
    config.agentic.preflight = False
    Preflight().on_job_start(config)


@pytest.mark.parametrize(
    ("python", "disk", "memory", "words"),
    [
        ((3, 11), 50.0, 16.0, []),
        ((3, 9), 50.0, 16.0, ["Python 3.9 is too old"]),
        ((3, 12), 2.0, 4.0, ["only 2.0 GB are free", "4.0 GB of memory"]),
    ],
)
def test_the_machine_is_checked_before_anything_is_installed(python, disk, memory, words):
    from verl_agentic.startup.machine_check import problems

    found = problems(python, disk, memory)
    assert len(found) == len(words)
    assert all(word in sentence for word, sentence in zip(words, found, strict=True))
