"""Index folders that were cut, edited or left half built: each is refused in one sentence."""

import json
from pathlib import Path

import pytest

from retriever_server.backends.bm25 import BM25Backend
from retriever_server.corpus import Passage, read_corpus
from retriever_server.errors import IndexRefused, RetrieverServerError
from retriever_server.index import build_index, open_index
from retriever_server.passages import PassageStore

PARTS = {
    "bm25": ["manifest.json", "passages.jsonl", "passages.offsets.npy", "data.csc.index.npy", "indices.csc.index.npy",
             "indptr.csc.index.npy", "params.index.json", "vocab.index.json"],
    "hashing": ["manifest.json", "passages.jsonl", "passages.offsets.npy", "vectors.faiss", "canaries.npy"],
}  # fmt: skip


@pytest.fixture
def corpus(tmp_path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": f"d{i}", "contents": f"passage number{i} about topic{i * 7} and thing{i * 13}"} for i in range(64)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refusal(folder: Path) -> str:
    with pytest.raises(RetrieverServerError) as caught:
        open_index(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("encoder", "part"), [(encoder, part) for encoder, parts in PARTS.items() for part in parts])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_part_cut_short_is_refused(corpus, tmp_path, encoder, part, kept):
    build_index(corpus, encoder, tmp_path / "index")
    path = tmp_path / "index" / part
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    assert "damaged" in refusal(tmp_path / "index")


def test_the_sizes_of_a_cut_passage_file_are_told(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    path = tmp_path / "index" / "passages.jsonl"
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(tmp_path / "index") == (
        f"The passages of {tmp_path / 'index'} are missing or damaged (passages.jsonl has {whole - 1} bytes instead of "
        f"{whole}); build the index again."
    )


def test_the_sizes_of_cut_vectors_are_told(corpus, tmp_path):
    build_index(corpus, "hashing", tmp_path / "index")
    path = tmp_path / "index" / "vectors.faiss"
    path.write_bytes(path.read_bytes()[:-1])
    # 64 vectors of 1024 floats behind a header of 45 bytes
    assert refusal(tmp_path / "index") == (
        f"{path} is damaged (262188 bytes where the manifest says 262189); build the index again."
    )


def test_a_passage_overwritten_in_place_is_refused_when_it_is_read(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    path = tmp_path / "index" / "passages.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (b"{", b"[]", b'{"id": "d3"}'):
        path.write_bytes(b"".join([*lines[:3], wrong.ljust(len(lines[3]) - 1) + b"\n", *lines[4:]]))
        backend, _ = open_index(tmp_path / "index")
        with pytest.raises(IndexRefused, match=r"Passage 3 of .*index is damaged; build the index again\."):
            backend.search(["number3"], 1)


BINARIES = [
    (encoder, part)
    for encoder, parts in PARTS.items()
    for part in parts
    if "manifest" not in part and "jsonl" not in part
]


@pytest.mark.parametrize(("encoder", "part"), BINARIES)
@pytest.mark.parametrize("position", [6, 30, -1])
def test_a_changed_bit_of_a_header_is_refused_by_name(corpus, tmp_path, encoder, part, position):
    build_index(corpus, encoder, tmp_path / "index")
    path = tmp_path / "index" / part
    whole = bytearray(path.read_bytes())
    whole[position] ^= 0x80
    path.write_bytes(whole)
    assert refusal(tmp_path / "index") == (
        f"{path} is damaged (its first or last bytes are not those built); build the index again."
    )


CANARY = {"row": 0, "id": "d0", "query": "passage number0 about topic0 and thing0"}


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("canaries", [], "names no canary by which the index could be checked"),
        ("canaries", None, "values of the wrong type: canaries"),
        ("canaries", [{"row": 1}], "a canary that does not name row, id and query"),
        ("canaries", [1], "a canary that does not name row, id and query"),
        ("canaries", [CANARY | {"row": "0"}], "a canary that does not name row, id and query"),
        ("canaries", [CANARY | {"query": None}], "a canary that does not name row, id and query"),
        ("canaries", [CANARY | {"more": 1}], "a canary that does not name row, id and query"),
        ("canaries", [CANARY | {"row": 64}], "names canary rows \\[64\\] of 64 passages"),
        ("canaries", [CANARY | {"row": -1}], "names canary rows \\[-1\\] of 64 passages"),
        ("count", "64", "values of the wrong type: count"),
        ("count", True, "values of the wrong type: count"),
        ("kind", ["bm25"], r"damaged \(kind \['bm25'\] of (bm25|dense) parts\)"),
        ("kind", "other", r"damaged \(kind 'other' of (bm25|dense) parts\)"),
        ("parts", {}, "values of the wrong type: parts"),
        ("parts", [], r"names parts of the kinds \[\]"),
        ("parts", [{"kind": "bm25"}], "a part that does not name kind, settings and vectors"),
        ("parts", [{"kind": "bm25", "settings": [], "vectors": {}}], "a part that does not name"),
        (
            "files",
            [{"name": "a", "bytes": "1", "sha256": "", "edges": ""}],
            "a file that does not name name, bytes, sha256",
        ),
        (
            "files",
            [{"name": "../a", "bytes": 1, "sha256": "", "edges": ""}],
            r"names files outside its folder \(../a\)",
        ),
        ("files", [{"name": "a", "bytes": 1, "sha256": "", "edges": ""}], "index/a is missing; build the index again"),
        ("versions", None, "values of the wrong type: versions"),
    ],
)
@pytest.mark.parametrize("encoder", ["bm25", "hashing"])
def test_a_manifest_with_unusable_values_is_refused(corpus, tmp_path, encoder, key, value, sentence):
    build_index(corpus, encoder, tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(RetrieverServerError, match=sentence):
        open_index(tmp_path / "index")


@pytest.mark.parametrize("encoder", ["bm25", "hashing"])
def test_every_setting_of_another_type_is_refused(corpus, tmp_path, encoder):
    build_index(corpus, encoder, tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    part = manifest["parts"][0]
    for what, name in [(group, name) for group in ("settings", "vectors") for name in part[group]]:
        damaged = part | {what: part[what] | {name: {"x": 1}}}
        path.write_text(json.dumps(manifest | {"parts": [damaged]}))
        assert f"{name}" in refusal(tmp_path / "index")


@pytest.mark.parametrize(
    ("name", "value"),
    [("nprobe", -5), ("ef_search", 10**30), ("nlist", -1), ("pq_m", 2**31), ("hnsw_m", -1), ("recall", 1.5),
     ("recall", float("nan"))],
)  # fmt: skip
def test_numbers_that_no_search_can_use_are_refused(corpus, tmp_path, name, value):
    build_index(corpus, "hashing", tmp_path / "index")
    path = tmp_path / "index" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["parts"][0]["vectors"][name] = value
    path.write_text(json.dumps(manifest))
    assert f"numbers outside their range ({name}); build the index again" in refusal(tmp_path / "index")


def test_passages_that_are_no_strings_are_refused(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    path = tmp_path / "index" / "passages.jsonl"
    first = path.read_bytes().splitlines()[0]
    path.write_bytes(path.read_bytes().replace(first, b'{"id": "d0", "contents": null}'.ljust(len(first)), 1))
    assert refusal(tmp_path / "index") == f"Passage 0 of {tmp_path / 'index'} is damaged; build the index again."


def test_a_manifest_nested_too_deeply_is_refused(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    (tmp_path / "index" / "manifest.json").write_text("[" * 100_000)
    assert "is damaged" in refusal(tmp_path / "index")


def test_a_built_folder_has_the_usual_permissions(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "index").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_place_that_cannot_be_written_is_refused_in_one_sentence(corpus, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexRefused, match=r"The index .*file/index cannot be written \(.*\); choose another folder\."):
        build_index(corpus, "bm25", tmp_path / "file" / "index")


class CountingRows:
    """Passages that count how often each is read."""

    def __init__(self, passages) -> None:
        self.passages = passages
        self.reads = 0

    def __len__(self) -> int:
        return len(self.passages)

    def __getitem__(self, row: int) -> Passage:
        self.reads += 1
        return self.passages[row]


def test_each_hit_reads_its_passage_once(corpus, tmp_path):
    build_index(corpus, "bm25", tmp_path / "index")
    rows = CountingRows(PassageStore(tmp_path / "index"))
    backend = BM25Backend.from_passages(rows)
    before = rows.reads
    hits = backend.search(["passage about"], 5)[0]
    assert rows.reads - before == 5
    assert [Passage(hit.id, hit.contents) for hit in hits] == list(read_corpus(corpus))[:5]
