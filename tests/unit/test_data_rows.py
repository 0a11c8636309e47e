import json
import random

import pytest

from verl_agentic.data.corpus import corpus_record, write_corpus
from verl_agentic.data.files import replacing
from verl_agentic.data.rows import RowError, make_row, question_row, read_rows, validate_row, write_rows
from verl_agentic.demo.questions import draw_question
from verl_agentic.demo.world import generate_world


def row(index=0):
    return make_row(
        "Where was X born ?", ["Y"], index=index, split="train", data_source="demo", agent_name="search_r1", kind="1hop"
    )


def test_row_has_the_documented_schema():
    assert row(3) == {
        "data_source": "demo",
        "prompt": [{"role": "user", "content": "Where was X born ?"}],
        "ability": "qa",
        "agent_name": "search_r1",
        "reward_model": {"style": "rule", "ground_truth": {"target": ["Y"]}},
        "extra_info": {"index": 3, "split": "train", "question": "Where was X born ?", "kind": "1hop"},
    }


def test_rows_survive_parquet(tmp_path):
    path = tmp_path / "deep" / "train.parquet"
    assert write_rows(path, [row(0), row(1)]) == 2
    assert read_rows(path) == [row(0), row(1)]


def test_question_rows_carry_gold_passages_and_decomposition(tmp_path):
    question = draw_question(generate_world(0), "2hop", random.Random(0))
    written = question_row(question, index=0, split="test", data_source="demo", agent_name="search_r1")
    write_rows(tmp_path / "x.parquet", [written])
    extra = read_rows(tmp_path / "x.parquet")[0]["extra_info"]
    assert extra["gold_passages"] == list(question.passage_ids)
    assert [step["depends"] for step in extra["decomposition"]] == [[], [1]]
    assert extra["decomposition"][1]["text"] == question.steps[1].text
    assert extra["kind"] == "2hop"


def test_stock_verl_data_set_reads_the_rows(tmp_path):
    datasets = pytest.importorskip("datasets")
    write_rows(tmp_path / "x.parquet", [row(0), row(1)])
    loaded = datasets.load_dataset("parquet", data_files=str(tmp_path / "x.parquet"), cache_dir=str(tmp_path))["train"]
    assert loaded[1]["prompt"] == [{"role": "user", "content": "Where was X born ?"}]


def put(path, value):
    damaged = json.loads(json.dumps(row()))
    *parents, last = path.split(".")
    spot = damaged
    for name in parents:
        spot = spot[name]
    if value is ...:
        del spot[last]
    else:
        spot[last] = value
    return damaged


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("data_source", ..., "field data_source is missing; name the data set"),
        ("agent_name", " ", "field agent_name is empty; name a method, or leave the column out"),
        ("prompt", [], "field prompt is empty; give a list like"),
        ("prompt", [{"role": "user"}], "field prompt holds a message without role or content"),
        ("reward_model", None, "field reward_model.ground_truth.target is missing"),
        ("reward_model.ground_truth.target", [], "field reward_model.ground_truth.target is empty; give a list"),
        (
            "reward_model.ground_truth.target",
            "Y",
            "field reward_model.ground_truth.target has the wrong type (str: 'Y')",
        ),
        ("reward_model.ground_truth.target", ["Y", ""], "holds a blank gold answer"),
        ("extra_info.index", "0", "field extra_info.index has the wrong type (str: '0'); number the rows from 0"),
        ("extra_info.question", "", "field extra_info.question is empty"),
        ("extra_info.kind", 5, "field extra_info.kind has the wrong type (int: '5')"),
    ],
)
def test_bad_row_is_named_by_number_and_field(field, value, message):
    with pytest.raises(RowError) as caught:
        validate_row(put(field, value), 17, "train.parquet")
    assert str(caught.value).startswith("row 17 of train.parquet: ")
    assert message in str(caught.value)


def test_bad_row_in_a_file_is_found_on_reading(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist([row(0), put("reward_model.ground_truth.target", [])]), path)
    with pytest.raises(RowError, match=r"row 2 of .*x\.parquet: field reward_model\.ground_truth\.target is empty"):
        read_rows(path)


def test_nothing_is_written_when_a_row_is_bad(tmp_path):
    with pytest.raises(RowError, match="row 2"):
        write_rows(tmp_path / "x.parquet", [row(), put("extra_info.split", "")])
    assert not (tmp_path / "x.parquet").exists()


def test_missing_empty_and_broken_files_say_so(tmp_path):
    with pytest.raises(RowError, match=r"does not exist; check data\.train_files"):
        read_rows(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("no parquet")
    with pytest.raises(RowError, match="is not a readable parquet file"):
        read_rows(tmp_path / "text.parquet")
    with pytest.raises(RowError, match="would hold no row"):
        write_rows(tmp_path / "empty.parquet", [])


def test_corpus_rows_follow_the_usual_retrieval_format(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [corpus_record("1", "A Title", "Some text."), corpus_record("2", "B", "bare", contents="bare")]
    assert write_corpus(path, records) == 2
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0] == {"id": "1", "title": "A Title", "text": "Some text.", "contents": '"A Title"\nSome text.'}
    assert lines[1]["contents"] == "bare"


def test_corpus_with_a_repeated_id_is_refused(tmp_path):
    record = corpus_record("1", "A", "text")
    with pytest.raises(ValueError, match=r"corpus row 2 .* repeats the id '1'"):
        write_corpus(tmp_path / "c.jsonl", [record, record])


def test_rows_of_other_software_need_no_column_of_ours():
    written = make_row("Who ?", ["A"], index=0, split="train", data_source="nq")
    assert "agent_name" not in written
    del written["extra_info"]["question"], written["extra_info"]["kind"]
    assert validate_row(written, 1, "x") is written


def plain(index=0, **extra):
    return make_row("Who ?", ["A"], index=index, split="train", data_source="nq", extra=extra)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (row(2), "row 3 of {path}: field agent_name is not in row 1; give every row of a file the same fields."),
        (plain(2, level="hard"), "row 3 of {path}: field extra_info.level is not in row 1; give every row"),
        (
            {**plain(2), "reward_model": {"ground_truth": {"target": ["A"]}}},
            "row 3 of {path}: field reward_model.style is missing, but row 1 has it; give every row",
        ),
    ],
)
def test_rows_of_a_file_have_the_same_fields(tmp_path, odd, message):
    path = tmp_path / "x.parquet"
    with pytest.raises(RowError) as caught:
        write_rows(path, [plain(0), plain(1), odd])
    assert str(caught.value).startswith(message.format(path=path))
    with pytest.raises(RowError, match=r"^row 2 of "):
        write_rows(path, [odd, plain(0)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("one", "other"), [("a", 1), (1, "a"), ([1], {"b": 2}), ({}, {})])
def test_values_that_parquet_cannot_hold_are_refused(tmp_path, one, other):
    with pytest.raises(RowError, match=r"x\.parquet cannot hold these rows|row 2 of .* is not in row 1"):
        write_rows(tmp_path / "x.parquet", [plain(0, level=one), plain(1, level=other)])
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_writer_leaves_the_old_file(tmp_path):
    path = tmp_path / "kept"
    path.write_text("old")

    def interrupted():
        with replacing(path) as partial:
            partial.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_takes_the_place_of_an_old_one_whole(tmp_path):
    for names in (("a", "b"), ("c",)):
        with replacing(tmp_path / "deep" / "folder") as partial:
            partial.mkdir()
            for name in names:
                (partial / name).write_text(name)
    assert [path.name for path in (tmp_path / "deep" / "folder").iterdir()] == ["c"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["folder"]
