import dataclasses
import json

import pytest
import torch

pytest.importorskip("transformers")

from verl_agentic.demo.__main__ import main
from verl_agentic.demo.codec import WordCodec
from verl_agentic.demo.cold_start import (
    ColdStartConfig,
    _batches,
    cached_cold_start,
    kinds_of,
    policy_loss,
    train_cold_start,
)
from verl_agentic.demo.evaluate import Asked, evaluate
from verl_agentic.demo.policy import build_policy
from verl_agentic.demo.prepare import packaged_cold_start
from verl_agentic.demo.questions import HEADLINE_MIX
from verl_agentic.demo.search import CorpusSearch
from verl_agentic.demo.splits import split_questions
from verl_agentic.demo.tokenizer import build_tokenizer
from verl_agentic.demo.traces import trace_source
from verl_agentic.demo.world import generate_world

SHORT = ColdStartConfig(steps=6, batch=4)


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def rows(count=6):
    source = trace_source("search_r1", WordCodec(build_tokenizer()), dict(HEADLINE_MIX))
    return [row for episode in source.episodes("test", count) for row in episode.rows]


def test_training_is_the_same_for_the_same_seed_and_writes_a_loadable_folder(tmp_path):
    lines = []
    record = train_cold_start(SHORT, tmp_path / "a", lines.append)
    train_cold_start(SHORT, tmp_path / "b", lines.append)
    train_cold_start(dataclasses.replace(SHORT, seed=1), tmp_path / "c", lines.append)
    one, same, other = (weights(tmp_path / name) for name in "abc")
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one)
    assert json.loads((tmp_path / "a" / "cold_start.json").read_text())["losses"] == record["losses"]
    assert record["rebuild"].endswith("cold-start --method search_r1 --seed 0 --steps 6 --batch 4 --out FOLDER")
    assert any(line.startswith("cold start 6/6: loss ") for line in lines)
    assert record["held_out"]["headline"]["count"] == 100
    assert record["held_out"]["headline"]["em"] == 0.0


def test_loss_falls_in_a_few_steps():
    model = build_policy(build_tokenizer())
    batch = rows(12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        loss = policy_loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_loss_ignores_prompt_and_observation_targets():
    model = build_policy(build_tokenizer()).eval()
    (row,) = rows(1)
    assert 0 in row.response_mask
    none = dataclasses.replace(row, response_mask=(*(0 for _ in row.response_mask[:-1]), 1))
    with torch.no_grad():
        ids = torch.tensor([row.prompt_ids + row.response_ids])
        last = torch.log_softmax(model(ids[:, :-1]).logits[0, -1], -1)[row.response_ids[-1]]
        assert policy_loss(model, [none]).item() == pytest.approx(-last.item(), abs=1e-5)


def test_padding_changes_nothing():
    model = build_policy(build_tokenizer()).eval()
    some = rows(8)
    tokens = [sum(row.response_mask) for row in some]
    with torch.no_grad():
        alone = [policy_loss(model, [row]).item() for row in some]
        together = policy_loss(model, some).item()
    mean = sum(loss * count for loss, count in zip(alone, tokens, strict=True)) / sum(tokens)
    assert together == pytest.approx(mean, abs=1e-4)


def test_what_is_written_beside_sessions_is_taught_in_part():
    method, codec = "dep_search", WordCodec(build_tokenizer())
    config = ColdStartConfig(method, steps=80, batch=6)
    batches = list(_batches(trace_source(method, codec, kinds_of(method)), config))
    beside = sum(not row.turns for batch in batches for row in batch)
    sessions = sum(bool(row.turns) for batch in batches for row in batch)
    # most sessions write one summary, some two; a third of them is shown
    assert 0.2 < beside / sessions < 0.5
    assert len(batches) == 80


def test_a_method_may_have_kinds_of_its_own():
    assert kinds_of("search_r1") == {"1hop": 0.35, "2hop": 0.35, "comparison": 0.3}
    assert set(kinds_of("dep_search")) == {"1hop", "2hop", "3hop", "4hop", "comparison", "shared"}
    assert sum(kinds_of("dep_search").values()) == pytest.approx(1.0)


def test_every_group_of_episodes_comes_from_a_fresh_world():
    source = trace_source("search_r1", WordCodec(build_tokenizer()), dict(HEADLINE_MIX))
    one, same, other = (source.episodes(seed, 10) for seed in ("1", "1", "2"))
    assert one == same
    assert not {e.question for e in one} & {e.question for e in other}
    assert all(e.outcome.kind == "ok" for e in one + other)


def test_cache_trains_once_and_again_when_the_configuration_changes(tmp_path):
    lines = []
    folder = cached_cold_start(SHORT, tmp_path, lines.append)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert cached_cold_start(SHORT, tmp_path, lines.append) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert "unchanged" in lines[-1]
    assert dataclasses.replace(SHORT, seed=2).key() != SHORT.key()


def test_prepare_writes_everything_and_skips_what_is_unchanged(tmp_path, capsys):
    command = [
        "prepare",
        "--out",
        str(tmp_path),
        "--cold-start-steps",
        "2",
        "--train",
        "60",
        "--test",
        "30",
        "--val",
        "10",
    ]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 0
    second = capsys.readouterr().out
    assert "world and questions: unchanged" in second
    assert "cold start: unchanged" in second
    made = {path.name for path in tmp_path.iterdir()}
    assert {"world.json", "corpus.jsonl", "train.parquet", "val.parquet", "test.parquet", "test_4hop.parquet"} <= made
    assert (tmp_path / "cold_start" / "search_r1" / "model.safetensors").is_file()
    passages = [json.loads(line) for line in (tmp_path / "corpus.jsonl").read_text().splitlines()]
    assert len(passages) == 342
    assert passages[0]["contents"] == passages[0]["text"]


def test_impossible_options_end_with_one_sentence(tmp_path, capsys):
    assert main(["prepare", "--out", str(tmp_path), "--persons", "7"]) == 2
    assert "persons must be even" in capsys.readouterr().err
    assert main(["prepare", "--out", str(tmp_path), "--method", "serch_r1"]) == 2
    assert "serch_r1" in capsys.readouterr().err


def test_method_without_a_packaged_checkpoint_says_what_to_do():
    with pytest.raises(ValueError, match=r"no packaged cold start 'other'.*--cold-start build"):
        packaged_cold_start("other")


def check_hasty_start(folder, world_seed=0):
    world = generate_world(world_seed)
    asked = [Asked(q.text, q.answers, q.kind) for q in split_questions(world)["test"]]
    found = evaluate(folder, asked, CorpusSearch(world.passages))
    assert found["headline"].count == 300
    assert 0.35 <= found["headline"].em <= 0.50
    assert found["2hop"].em < 0.10
    assert found["1hop"].em > 0.9
    assert found["headline"].format > 0.98
    assert found["headline"].searches < 1.2


def test_packaged_checkpoint_is_a_hasty_start_on_held_out_questions():
    check_hasty_start(packaged_cold_start("search_r1"))


@pytest.mark.slow
def test_full_training_gives_a_hasty_start(tmp_path):
    train_cold_start(ColdStartConfig(), tmp_path)
    check_hasty_start(tmp_path)


def test_a_cold_start_is_named_after_its_method_and_what_its_policy_lacks():
    from verl_agentic.demo.cold_start import named

    assert ColdStartConfig(method="m_ask").name == "m_ask"
    without = ColdStartConfig(method="agentic_rag_r1", actions_off=("backtrack", "summary"))
    assert without.name == "agentic_rag_r1-without-backtrack-summary"
    assert named(without.name) == ("agentic_rag_r1", ("backtrack", "summary"))
    assert named("m_ask") == ("m_ask", ())
    assert without.key() != ColdStartConfig(method="agentic_rag_r1").key()


def test_a_batch_holds_the_rows_of_its_number_of_sessions():
    """Sessions that edit their context have several rows; all of them are in the batches."""
    from verl_agentic.demo.cold_start import _batches

    source = trace_source("agentic_rag_r1", WordCodec(build_tokenizer()), {"1hop": 1.0}, mix={"1hop": {"good": 1.0}})
    config = ColdStartConfig(method="agentic_rag_r1", steps=4, batch=5)
    batches = list(_batches(source, config))
    assert [len(rows) for rows in batches] == [10, 10, 10, 10]  # two rows a session: up to the summary, and after it
