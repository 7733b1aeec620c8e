"""TextEncoder: all-MiniLM-L6-v2 against plain NumPy in float64, and the behaviour of encode, stream and attention_maps."""

import gc
import itertools
import json
import shutil
import sys
import tracemalloc

import numpy as np
import pytest
from processes import printed
from tiny_models import WORDS, close
from written_texts import TEXTS

import mha_core as mha
import mha_text as mt
import mha_text.models.packing as packing
from mha_conformance.bench import plain_numpy

ODD = [
    "",
    "   ",
    "Attention",
    "IS ALL you NEED?!",
    "a\ttab, a\nnewline and \r\n both",
    "[SEP] in the [MASK] text [PAD]",
    "Ünïcødé, ﬁne naïve café",
    "日本語のテキスト и русский",
    "😀👍🏽 smileys",
    "3,14 € ... don't stop-now",
    "x" * 150,  # longer than any word the tokenizer takes
]


@pytest.fixture(scope="session")
def encoder(minilm):
    return mt.TextEncoder.from_pretrained(minilm, backend="numpy")


@pytest.fixture(scope="session")
def reference(minilm):
    return plain_numpy.TextEncoder(minilm, "float64", plain_numpy.exact_gelu)


@pytest.fixture(scope="session")
def texts(sentences):
    """The odd texts, the four longest of the demo, and some of its others."""
    longest = sorted(sentences, key=len)[-4:]
    return [*ODD, *longest, *sentences[3::24]]


@pytest.fixture(scope="session")
def vectors(encoder, texts):
    return encoder.encode(texts)


def test_vectors_equal_the_reference(encoder, reference, texts, vectors):
    assert len(texts) >= 25
    assert vectors.dtype == np.float32
    assert vectors.shape == (len(texts), encoder.dim) == (len(texts), 384)
    close(vectors, reference(texts), 1e-5)


def test_similarities_are_those_published_by_sentence_transformers(encoder):
    # https://sbert.net/docs/quickstart.html, to the four decimals printed there
    vectors = encoder.encode(["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."])
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    close(vectors @ vectors.T, published, 0.6e-4)


@pytest.mark.parametrize(
    ("backend", "dtype", "tolerance", "cosine"),
    [
        ("array_api_strict", "float32", 1e-5, 1),
        ("numpy", "float64", 1e-7, 1),
        ("torch", "float32", 1e-6, 1),
        ("torch", "bfloat16", 4e-3, 0.9999),  # eight bits of precision
    ],
)
def test_other_backends_and_dtypes_give_the_same_vectors_in_float32(minilm, reference, backend, dtype, tolerance, cosine):
    encoder = mt.TextEncoder.from_pretrained(minilm, backend=backend, dtype=dtype)
    assert {str(array.dtype).rpartition(".")[2] for array in encoder.model.arrays().values()} == {dtype}
    vectors = encoder.encode(ODD[2:7])
    assert vectors.dtype == encoder.backend.xp.float32
    vectors, expected = encoder.backend.to_numpy(vectors), reference(ODD[2:7])
    close(vectors, expected, tolerance)
    close(np.linalg.norm(vectors, axis=1), 1)
    assert (vectors * expected).sum(axis=1).min() > cosine - 1e-6
    assert encoder.encode([]).shape == (0, 384)


def test_vectors_depend_neither_on_the_order_nor_on_other_texts_nor_on_batches(encoder, texts, vectors, rng, monkeypatch):
    texts, vectors = texts[::3], vectors[::3]
    order = rng.permutation(len(texts))
    close(encoder.encode([texts[at] for at in order]), vectors[order])
    for text, vector in zip(texts, vectors, strict=True):
        close(encoder.encode([text])[0], vector)
    same = encoder.encode([texts[4], texts[7], texts[4]])
    close(same[0], same[2])
    for tokens in (1, 100, 10**6):
        monkeypatch.setattr(packing, "TOKENS", tokens)
        close(encoder.encode(texts), vectors)


def test_two_texts_take_few_calls_of_python(encoder, set_num_threads):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call" and any(name in frame.f_code.co_filename for name in ("mha_core", "mha_numpy"))

    set_num_threads(1)  # calls of other threads are not counted
    for profile in (None, count):  # plans are made first
        sys.setprofile(profile)
        encoder.encode(["a text", "another"])
        sys.setprofile(None)
    assert 100 < calls <= 1600


def test_generators_tuples_arrays_and_one_string_are_texts(tiny):
    many = ["a bird", "the tree at dawn", ""] * 50
    np.testing.assert_array_equal(tiny.encode(many), tiny.encode(iter(many)))
    expected = tiny.encode(["a", "bird"])
    np.testing.assert_array_equal(tiny.encode("bird"), tiny.encode(["bird"])[0])
    for texts in (("a", "bird"), (word for word in ("a", "bird")), {"a": 1, "bird": 2}, np.array(["a", "bird"])):
        np.testing.assert_array_equal(tiny.encode(texts), expected)
    for nothing in ([], (), iter([])):
        assert (tiny.encode(nothing).shape, tiny.encode(nothing).dtype) == ((0, 8), np.float32)


def test_what_is_no_text_is_refused_by_its_index(tiny, monkeypatch):
    monkeypatch.setattr(packing, "WINDOW", 2)
    for call, text in ((tiny.encode, b"a"), (tiny.stream, "a bird"), (tiny.stream, b"a"), (tiny, "a text")):
        with pytest.raises(TypeError, match=rf"texts is one {type(text).__name__}; expected a list of strings: write \[text\]"):
            call(text)
    for odd in (3, None, b"bird", ["bird"]):
        with pytest.raises(TypeError, match=rf"texts\[4\] is {type(odd).__name__}; expected str"):
            tiny.encode(["a", "a", "a", "a", odd, "a"])
    with pytest.raises(UnicodeError, match=r"texts\[1\]"):
        tiny.encode(["a", "\ud800"])  # half of a surrogate pair, as os.fsdecode leaves it


def test_long_texts_are_cut_with_one_warning_that_counts_them(tiny, monkeypatch):
    longest = " ".join(["bird"] * (tiny.max_seq_length - 2))
    tiny.encode([longest])  # a warning would be an error
    monkeypatch.setattr(packing, "WINDOW", 2)
    with pytest.warns(mt.TruncationWarning, match="^2 of 3 texts are longer than 8 tokens, and were cut there$") as caught:
        vectors = tiny.encode([f"{longest} tree", "a", f"{longest} " * 40])
    assert [each.filename for each in caught] == [__file__]  # it points at the caller
    close(vectors, tiny.encode([longest, "a", longest]))


def test_windows_of_stream_concatenate_to_encode(tiny, monkeypatch, rng):
    texts = [" ".join(rng.choice(WORDS[4:], size=rng.integers(0, 7))) for _ in range(11)]
    expected = tiny.encode(texts)
    monkeypatch.setattr(packing, "WINDOW", 4)
    parts = list(tiny.stream(texts))
    assert [part.shape for part in parts] == [(4, 8), (4, 8), (3, 8)]
    close(np.concatenate(parts), expected)
    close(tiny.encode(texts), expected)


def test_stream_reads_one_window_ahead_and_no_more(tiny, monkeypatch):
    monkeypatch.setattr(packing, "WINDOW", 4)
    read = itertools.count(1)
    last = 0

    def endless():
        nonlocal last
        for last in read:  # noqa: B007
            yield "a bird"

    stream = tiny.stream(endless())
    assert last == 0
    for windows in range(1, 6):
        assert next(stream).shape == (4, 8)
        assert last == 4 * windows
    stream.close()


def test_memory_does_not_grow_with_the_number_of_texts(tiny, monkeypatch, rng):
    monkeypatch.setattr(packing, "WINDOW", 256)
    window = [
        rng.choice(WORDS[4:], size=rng.integers(0, 7)) for _ in range(256)
    ]  # of always the same shapes, so plans do not grow
    endless = (" ".join(words) for _ in itertools.count() for words in window)
    tracemalloc.start()
    try:
        stream, held = tiny.stream(endless), []
        for windows in (2, 18):
            assert {part.shape for part in itertools.islice(stream, windows)} == {(256, 8)}
            gc.collect()  # mostly tuples that Python keeps for reuse
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert held[1] < held[0] + 100_000  # bytes; the vectors of 18 windows take 147,000, their texts more


def test_progress_is_a_bar_only_when_asked_for_or_on_a_terminal(tiny, capsys):
    for silent in (None, False):
        tiny.encode(["a", "bird"], progress=silent)
        assert capsys.readouterr() == ("", "")
    tiny.encode(["a", "bird"], progress=True)
    out, err = capsys.readouterr()
    assert out == "" and "2/2" in err and "texts" in err


def test_unknown_backends_are_refused_before_the_model_is_read_and_dtypes_that_are_not_floating(tiny_model):
    with pytest.raises(mha.UnknownBackend, match="did you mean 'numpy'"):
        mt.TextEncoder.from_pretrained("no/such/directory", backend="nunpy")
    for wrong in ("float31", "int32"):
        with pytest.raises(TypeError, match=f"dtype is .*{wrong}.*expected float32"):
            mt.TextEncoder.from_pretrained(tiny_model, dtype=wrong)


def test_a_repository_is_read_from_the_cache_of_the_hub(tiny_model, tiny, tmp_path, set_num_threads):
    home, commit = tmp_path / "hub-home", "0123456789abcdef0123456789abcdef01234567"
    repository = home / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(tiny_model, repository / "snapshots" / commit)
    code = "import mha_core as mha, mha_text as mt; mha.set_num_threads(1)"
    code += "; print(mt.TextEncoder.from_pretrained('org/tiny').encode(['a bird']).tolist())"
    settings = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}  # read when huggingface_hub is imported, hence another process
    vectors = json.loads(printed(code, cwd=tmp_path, without=("HF_*", "HUGGINGFACE_*"), **settings))
    set_num_threads(1)  # the last bits depend on this number
    np.testing.assert_array_equal(np.array(vectors, dtype=np.float32), tiny.encode(["a bird"]))


@pytest.mark.parametrize("name", ["org/not-there", "not-there"])
def test_a_repository_that_is_not_in_the_cache_is_not_found(name):
    assert issubclass(mt.ModelNotFound, FileNotFoundError)  # which callers may expect for a name
    with pytest.raises(mt.ModelNotFound, match=f"no directory {name}, and no model of that name could be fetched from the hub"):
        mt.TextEncoder.from_pretrained(name)


def test_attention_maps_come_with_the_tokens_of_a_text(encoder):
    maps, tokens = encoder.attention_maps("Swifts sleep on the wing.")
    assert tokens == ["[CLS]", "swift", "##s", "sleep", "on", "the", "wing", ".", "[SEP]"]
    assert maps.shape == (6, 12, 9, 9)
    close(maps.sum(axis=-1), 1)
    with pytest.raises(TypeError, match=r"^text is int; expected str"):
        encoder.attention_maps(3)


def test_texts_that_are_tokenized_have_the_vectors_of_encode(tiny):
    ids, _ = tiny.tokenizer(TEXTS)
    np.testing.assert_array_equal(tiny.encode_ids(ids), tiny.encode(TEXTS))
    assert tiny.encode_ids([]).shape == (0, 8)


def test_the_bits_of_tokenized_texts_do_not_depend_on_the_number_of_threads(tiny, set_num_threads):
    """One batch, of more rows than a thread takes at once."""
    ids, _ = tiny.tokenizer([" ".join(["a", "bird", "sings"] * 2)] * 100)
    bits = set()
    for count in (1, 2, 3):
        set_num_threads(count)
        bits.add(tiny.encode_ids(ids).tobytes())
    assert len(bits) == 1
