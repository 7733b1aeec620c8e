"""What a run says of a folder that another run began: the reason, and what happened to each file."""

import json
import re

import needs
import pytest
from tiny_models import edit
from written_texts import TEXTS, write

import mha_text as mt

pytestmark = needs.installed("pyarrow")


@pytest.fixture
def encode(tiny_model, tmp_path):
    """The function that encodes files of ``tmp_path`` to out, all in one part."""

    def run(*names, backend=None):
        model = mt.TextEncoder.from_pretrained(tiny_model, backend=backend)
        return mt.encode_corpus(None, [tmp_path / name for name in names], tmp_path / "out", model, progress=False)

    for name, texts in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, texts)
    return run


FILES = {
    "a.txt": TEXTS[:3],
    "copy.txt": TEXTS[:3],
    "b.txt": TEXTS[3:6],
    "c.txt": TEXTS[6:9],
    "d.txt": TEXTS[9:12],
    "e.txt": TEXTS[12:15],
    "in/a.txt": TEXTS[:3],
    "in/b.txt": TEXTS[3:6],
    "in/c.txt": TEXTS[:2],
}


def refusal(encode, *names, **options):
    """Return what differs, as the error says."""
    with pytest.raises(mt.CorpusError) as error:
        encode(*names, **options)
    return re.search(r"was begun with something else: (.*)\. Give another folder, or remove this one$", str(error.value))[1]


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("a.txt", "copy.txt", "sources: the same contents under another name: a.txt, now copy.txt"),
        ("in/a.txt", "in/a.txt b.txt", "sources: 1 more file, b.txt; rows was 3, now 6"),  # a.txt is in/a.txt now
        ("a.txt", "a.txt b.txt c.txt d.txt e.txt", "sources: 4 more files, b.txt, c.txt, d.txt and 1 more; rows was 3, now 15"),
        (
            "a.txt",
            "copy.txt b.txt",
            "sources: 1 more file, b.txt; sources: the same contents under another name: a.txt, now copy",
        ),
        ("a.txt b.txt", "b.txt", "sources: 1 file fewer, without a.txt; rows was 6, now 3"),
        ("a.txt b.txt", "b.txt a.txt", "sources: the same files in another order"),
        ("a.txt in/b.txt", "a.txt b.txt", "sources: the same contents under another name: in/b.txt, now b.txt"),
        ("a.txt c.txt", "in/a.txt in/c.txt", "sources: other contents in c.txt; rows was 6, now 5"),
        ("a.txt", "b.txt", "sources: 1 more file, b.txt; sources: 1 file fewer, without a.txt"),
    ],
)
def test_each_file_is_said_to_be_new_gone_changed_or_named_otherwise(encode, before, now, message):
    encode(*before.split())
    assert refusal(encode, *now.split()).startswith(message)
    assert encode(*before.split()).reused


def test_another_backend_is_named_before_the_digests_which_are_short(encode):
    encode("a.txt", backend="numpy")
    message = r"model: backend was numpy, now array_api_strict; model: sha256 was [0-9a-f]{12}, now [0-9a-f]{12}"
    assert re.fullmatch(message, refusal(encode, "a.txt", backend="array_api_strict"))


def test_a_manifest_that_lists_the_same_files_otherwise_is_not_said_to_have_others(encode, tmp_path):
    encode("a.txt")
    edit(tmp_path / "out/_manifest.json", sources=[{**source(tmp_path), "rows": 4}])
    assert refusal(encode, "a.txt") == "sources: the same files, otherwise listed"
    edit(tmp_path / "out/_manifest.json", sources=["\x1b", 3])
    assert refusal(encode, "a.txt") == "sources: 1 more file, a.txt; sources: 2 files fewer, without \\x1b, 3"


def source(folder):
    (only,) = json.loads((folder / "out/_manifest.json").read_text())["sources"]
    return only
