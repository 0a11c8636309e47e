"""The data filter over a real retriever server and a real (tiny) model folder."""

import json
import socket
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from http_servers import JsonHandler, serving

from retriever_server.index import build_index
from retriever_server.process import start_server
from verl_agentic.cli import main
from verl_agentic.core.environment import Passage
from verl_agentic.data.filter_rules import findable, holds_answer, read_answer, right_share
from verl_agentic.data.rows import make_row, write_rows

CORPUS = [
    {"id": "p1", "contents": '"Lina Aldor"\nLina Aldor was born in Vesper in 1901 .'},
    {"id": "p2", "contents": '"Vesper"\nVesper is a town by the river Oon . Yes , it is .'},
    {"id": "p3", "contents": '"Bram Toll"\nBram Toll is the spouse of Lina Aldor .'},
]
# question, aliases, kind: what the rule of one search says with topk 1
ROWS = [
    ("Where was Lina Aldor born ?", ["the Vesper", "Vesper town"], "1hop"),  # p1 holds "vesper"
    ("By which river lies the birth place of the spouse of Bram Toll ?", ["Oon"], "3hop"),  # p3 does not name it
    ("Is Vesper a town ?", ["yes"], "comparison"),  # cannot be looked for
    ("Which letter does the spouse of Bram Toll begin with ?", ["L"], "1hop"),  # nor can this
    ("Who is the spouse of Lina Aldor ?", ["Bram Toll"], "1hop"),
]


def test_which_aliases_can_be_looked_for():
    assert findable(["Yes", "no", "A", "7", "the Oon", "U.S."]) == ["the Oon", "U.S."]
    assert holds_answer([Passage("a", "By the Oon ."), Passage("b", "b")], ["yes", "Oon"])
    assert not holds_answer([Passage("a", "Yes , by the Oonder")], ["yes", "Oon"])
    assert not holds_answer([], ["Oon"])


def test_replies_are_read_and_scored():
    assert read_answer("<think>\nVesper ?\n</think>\n\n The Oon. \nIt is a river.") == "The Oon."
    assert read_answer(" \n") == ""
    assert right_share(["The Oon.", "Vesper", "", "oon"], ["Oon"]) == 0.5


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("filter")
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    build_index(folder / "corpus.jsonl", "bm25", folder / "index")
    return folder / "index"


@pytest.fixture(scope="module")
def url(index):
    with start_server(index) as server:
        yield server.url


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "train.parquet"
    rows = [
        make_row(question, golds, index=10 + number, split="train", data_source=f"made_{kind}", kind=kind)
        for number, (question, golds, kind) in enumerate(ROWS)
    ]
    write_rows(path, rows)
    table = pq.read_table(path)
    pq.write_table(table.append_column("note", pa.array(list("abcde"))), path)  # a column of the user's own
    return path


def run(*arguments):
    return main(["data", "filter", *map(str, arguments)])


def test_one_trivial_search_drops_items_and_leaves_the_others_as_they_were(data, url, tmp_path, capsys):
    out = tmp_path / "kept" / "filtered.parquet"
    assert run("--data", data, "--out", out, "--retriever", url, "--topk", 1, "--batch", 2) == 0
    before, after = pq.read_table(data), pq.read_table(out)
    assert after.equals(before.take([1, 2, 3]))
    assert [row["index"] for row in after["extra_info"].to_pylist()] == [11, 12, 13]
    report = json.loads((tmp_path / "kept" / "filtered.parquet.report.json").read_text())
    assert report["counts"] == {"kept": 3, "no_retrieval": 0, "one_search": 2}
    assert report["not_judged_by_search"] == 2
    assert report["by_kind"]["1hop"] == {"kept": 1, "no_retrieval": 0, "one_search": 2}
    assert report["by_data_source"]["made_3hop"] == {"kept": 1, "no_retrieval": 0, "one_search": 0}
    assert report["settings"]["topk"] == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2] == "filter 5/5: 3 kept, 0 no_retrieval, 2 one_search"
    assert printed[-1] == f"3 of 5 rows kept in {out}; report: {out}.report.json"
    decisions = [json.loads(line) for line in (tmp_path / "kept" / "filtered.parquet.decisions.jsonl").open()][1:]
    assert {d["number"]: d["judged_by_search"] for d in decisions} == {0: True, 1: True, 2: False, 3: False, 4: True}


def test_a_retriever_that_is_down_decides_nothing_and_the_same_command_goes_on(data, index, tmp_path, capsys):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "filtered.parquet"
    ledger = tmp_path / "filtered.parquet.decisions.jsonl"
    command = ["--data", data, "--out", out, "--retriever", f"http://127.0.0.1:{port}", "--topk", 1]
    assert run(*command) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "does not answer (connection refused)" in error
    assert "; the same command goes on where it stopped." in error
    assert not out.exists()
    assert len(ledger.read_text().splitlines()) == 1, "the header alone"
    with start_server(index, port=port):
        assert run(*command) == 0
    whole = ledger.read_text().splitlines()
    ledger.write_text("\n".join(whole[:3]) + "\n" + '{"number": 2, "ver')  # stopped in the middle of a line
    assert run(*command) == 2
    assert len(ledger.read_text().splitlines()) == 3
    with start_server(index, port=port):
        assert run(*command, "--batch", 1) == 0
    assert sorted(ledger.read_text().splitlines()[1:]) == sorted(whole[1:])
    assert "2 decisions taken from" in capsys.readouterr().out


def test_other_settings_and_other_data_are_refused(data, url, tmp_path, capsys):
    out = tmp_path / "filtered.parquet"
    assert run("--data", data, "--out", out, "--retriever", url, "--topk", 1) == 0
    assert run("--data", data, "--out", out, "--retriever", url, "--topk", 2) == 2
    assert "was begun with topk 1, this run has 2; go on with the same settings" in capsys.readouterr().err
    pq.write_table(pq.read_table(data).take([0, 1]), data)
    assert run("--data", data, "--out", out, "--retriever", url, "--topk", 1) == 2
    assert "was begun with data_sha256" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["{", "[]", '{"number": 0}', '{"number": 0, "verdict": "perhaps"}'])
def test_a_damaged_record_is_one_sentence(data, url, tmp_path, capsys, line):
    out, ledger = tmp_path / "filtered.parquet", tmp_path / "filtered.parquet.decisions.jsonl"
    command = ["--data", data, "--out", out, "--retriever", url, "--topk", 1]
    assert run(*command) == 0
    ledger.write_text(ledger.read_text() + line + "\n")
    assert run(*command) == 2
    error = capsys.readouterr().err
    assert f"{ledger} is damaged" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--trivial-search", "off"], "nothing to filter by"),
        ([], "needs a retriever: give --retriever URL"),
        (["--retriever", "http://127.0.0.1:9", "--topk", "0"], "--topk and --limit must be at least 1, got 0"),
        (["--closed-book", "/none", "--trivial-search", "off"], "nor a Hugging Face folder with a config.json"),
        (["--closed-book", "/none", "--trivial-search", "off", "--share", "0"], "--share must be above 0"),
        (["--closed-book", "http://127.0.0.1:9/v1", "--trivial-search", "off"], "--closed-book URL needs --model NAME"),
        (["--retriever", "http://127.0.0.1:9", "--model", "big"], "and nothing else takes it"),
        (["--retriever", "http://127.0.0.1:9", "--temperature", "0"], "are the same reply"),
    ],
)
def test_options_that_make_no_sense_are_one_sentence(data, tmp_path, capsys, options, said):
    assert run("--data", data, "--out", tmp_path / "out.parquet", *options) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_items_that_all_fall_are_an_error_and_the_report_says_why(data, url, tmp_path, capsys):
    out = tmp_path / "filtered.parquet"
    assert run("--data", data, "--out", out, "--retriever", url, "--limit", 1) == 2
    assert "all 1 items of" in capsys.readouterr().err
    report = json.loads((tmp_path / "filtered.parquet.report.json").read_text())
    assert report["counts"] == {"kept": 0, "no_retrieval": 0, "one_search": 1}


@pytest.fixture(scope="module")
def knowing_model(tmp_path_factory):
    """A tiny model folder that was taught the answers of two of the questions."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from verl_agentic.data.closed_book import INSTRUCTION

    taught = [(ROWS[1][0], "Oon"), (ROWS[2][0], "yes"), (ROWS[0][0], "Oon"), (ROWS[3][0], "Oon"), (ROWS[4][0], "Oon")]
    texts = [f"{INSTRUCTION.format(question)}\nAnswer: {answer} </s>" for question, answer in taught]
    words = sorted({word for text in texts for word in text.split()})
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(["<pad>", *words])}, unk_token="<pad>")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="<pad>")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = transformers.LlamaForCausalLM(config)
    batch = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
    labels = torch.full_like(batch["input_ids"], -100)
    labels[:, -2:] = batch["input_ids"][:, -2:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(150):
        loss = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.05
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_a_model_that_knows_the_answer_drops_items_before_any_search(data, url, knowing_model, tmp_path):
    out = tmp_path / "filtered.parquet"
    closed = ["--closed-book", knowing_model, "--attempts", 1, "--temperature", 0]
    assert run("--data", data, "--out", out, "--retriever", url, "--topk", 1, *closed) == 0
    report = json.loads((tmp_path / "filtered.parquet.report.json").read_text())
    assert report["counts"] == {"kept": 1, "no_retrieval": 2, "one_search": 2}
    assert [row["index"] for row in pq.read_table(out)["extra_info"].to_pylist()] == [13]
    alone = tmp_path / "alone.parquet"
    closed = ["--closed-book", knowing_model, "--attempts", 3, "--temperature", 0.2, "--trivial-search", "off"]
    assert run("--data", data, "--out", alone, "--batch", 2, *closed) == 0
    assert [row["index"] for row in pq.read_table(alone)["extra_info"].to_pylist()] == [10, 13, 14]
    decisions = [json.loads(line) for line in (tmp_path / "alone.parquet.decisions.jsonl").open()][1:]
    assert {d["number"]: (d["right"], d["judged_by_search"]) for d in decisions}[1] == (1.0, None)


def test_an_endpoint_is_asked_and_its_failure_decides_nothing(data, url, tmp_path, capsys):
    asked, down = [], threading.Event()

    class Model(JsonHandler):
        def do_POST(self):
            body = self.body()
            asked.append(body)
            if down.is_set():
                self.answer(400, {"error": {"message": "no such model"}})
                return
            right = "spouse of Lina Aldor" in body["messages"][0]["content"] and len(asked) % 2
            message = {"role": "assistant", "content": "Bram Toll." if right else "unknown"}
            self.answer(200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    out = tmp_path / "filtered.parquet"
    with serving(Model) as endpoint:
        command = ["--data", data, "--out", out, "--trivial-search", "off", "--batch", 1, "--concurrency", 1]
        command += ["--closed-book", f"{endpoint}/v1", "--model", "big", "--attempts", 2]
        down.set()
        assert run(*command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "; the same command goes on where it stopped." in error
        assert not out.exists()
        down.clear()
        assert run(*command) == 0
    report = json.loads((tmp_path / "filtered.parquet.report.json").read_text())
    assert report["counts"] == {"kept": 4, "no_retrieval": 1, "one_search": 0}
    assert report["settings"]["model"] == "big"
    assert (asked[-1]["model"], asked[-1]["temperature"], asked[-1]["max_tokens"]) == ("big", 0.7, 32)
