"""Reading a corpus (case P42) and the passage file of an index."""

import gzip
import json
from pathlib import Path

import pytest

from retriever_server.corpus import Passage, read_corpus
from retriever_server.errors import CorpusError
from retriever_server.passages import PassageStore, write_passages


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def complaint(path: Path) -> str:
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(path))
    return str(caught.value).replace(str(path), "FILE")


def test_contents_or_title_and_text(tmp_path):
    path = write(
        tmp_path / "c.jsonl", {"id": "a", "contents": "one"}, {"id": 2, "title": "Two", "text": "is even", "extra": 1}
    )
    assert list(read_corpus(path)) == [Passage("a", "one"), Passage("2", '"Two"\nis even')]


def test_gzip_and_blank_lines(tmp_path):
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "contents": "one"}\n\n  \n{"id": "b", "contents": "two"}'))
    assert [passage.id for passage in read_corpus(path)] == ["a", "b"]


def test_byte_order_mark_carriage_returns_and_unicode_line_separators(tmp_path):
    path = tmp_path / "c.jsonl"
    text = (
        '{"id": "a", "contents": "one\u2028two\x85three"}\r\n\r\n{"id": "b", "contents": "' + "x" * 2_000_000 + '"}\r\n'
    )
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert list(read_corpus(path)) == [Passage("a", "one\u2028two\x85three"), Passage("b", "x" * 2_000_000)]


def test_p42_a_question_file_is_refused_with_line_and_expected_keys(tmp_path):
    path = write(
        tmp_path / "c.jsonl", {"id": "a", "contents": "one"}, {"id": "q1", "question": "who?", "golden_answers": []}
    )
    assert complaint(path) == (
        'FILE line 2 has no `contents`; expected {"id", "contents"} or {"id", "title", "text"}, '
        'found {"id", "question", "golden_answers"}.'
    )


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (b'{"contents": "one"}', "FILE line 1 has no usable `id`"),
        (b'{"id": true, "contents": "one"}', "FILE line 1 has no usable `id`"),
        (b'{"id": "a", "contents": ""}', "FILE line 1 has a `contents` that is not a non-empty string."),
        (b'{"id": "a", "contents": ["x"]}', "FILE line 1 has a `contents` that is not a non-empty string."),
        (b'{"id": "a", "contents": "x\\ud800"}', "FILE line 1 has a lone surrogate in `contents`"),
        (b'["a"]', "FILE line 1 holds a JSON list; expected"),
        (b'{"id": "a", "contents": "one"', "FILE line 1 is not a JSON object: "),
        (b'{"id": "a", "contents": "\xff"}', "FILE line 1 is not UTF-8: "),
        (b'{"id": ' + b"9" * 5000 + b', "contents": "x"}', "FILE line 1 is not a JSON object: Exceeds the limit"),
        (
            b'{"id": "a", "contents": "x"}\n\xef\xbb\xbf{"id": "b"}',
            "FILE line 2 is not a JSON object: Unexpected UTF-8 BOM",
        ),
    ],
)
def test_bad_rows_name_their_line(tmp_path, raw, sentence):
    path = tmp_path / "c.jsonl"
    path.write_bytes(raw + b"\n")
    assert complaint(path).startswith(sentence)


def test_repeated_ids_name_the_second_line(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "1", "contents": "one"}\n\n{"id": 2, "contents": "one"}\n{"id": 1, "contents": "two"}\n')
    assert complaint(path) == "FILE line 4 repeats the id '1' of line 1; make ids unique."


def test_missing_file_and_truncated_gzip(tmp_path):
    assert complaint(tmp_path / "none.jsonl").startswith("FILE cannot be read after line 0: ")
    path = tmp_path / "c.jsonl.gz"
    lines = "".join(f'{{"id": {row}, "contents": "one"}}\n' for row in range(1000))
    path.write_bytes(gzip.compress(lines.encode())[:-20])
    assert complaint(path).startswith("FILE cannot be read after line ")


def test_passages_are_read_back_by_row(tmp_path):
    passages = [Passage("a", "one\ntwo"), Passage("b", "größer 🙂"), Passage("c", "x")]
    assert write_passages(tmp_path, iter(passages)) == 3
    store = PassageStore(tmp_path)
    assert [store[row] for row in range(len(store))] == passages
    for row in (-1, 3):
        with pytest.raises(IndexError, match="outside the 3 passages"):
            store[row]
