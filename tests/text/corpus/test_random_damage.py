"""Folders of vectors, damaged at random: search finds what it found before or raises CorpusError, and so does the next run."""

import shutil

import needs
import numpy as np
import pytest
from corpus_kills import contents
from damaged_files import damaged_bytes, damaged_json
from written_texts import TEXTS, write

import mha_text as mt

pytestmark = [needs.installed("pyarrow"), pytest.mark.full, pytest.mark.filterwarnings("error")]
COUNT = 2000  # damaged folders


def damage(folder, draw, is_again=False):
    """Damage a folder that mha encode wrote, and return what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[draw.integers(len(files))]
    if draw.random() < 0.3:
        path = folder / "_manifest.json"
    data, name, kind = path.read_bytes(), path.name, draw.random()
    if kind < 0.1 and name != "_manifest.json":  # without it the folder is not one of vectors
        path.unlink()
        return f"{name} removed"
    if kind < 0.25 and name.startswith("part") and not is_again:
        other = folder / "part-00001.parquet"
        other_data = other.read_bytes()
        other.write_bytes(data), path.write_bytes(other_data)
        return f"{name} exchanged"
    if data.startswith(b"{") and kind < 0.8 and not is_again:
        path.write_text(damaged_json(data.decode(), draw))
        return f"{name}: {path.read_text()[:3000]}"
    if data and kind < 0.9:
        at = int(draw.integers(len(data)))
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(draw.integers(8)))]) + data[at + 1 :])
        return f"{name}: one bit of byte {at}"
    path.write_bytes(damaged_bytes(data or b"x", draw))
    return f"{name}: {len(data)} bytes, now {path.stat().st_size}"


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_damage_is_found_or_does_not_matter(tiny, tmp_path, precision):
    seed = int(np.random.SeedSequence().entropy % (1 << 32))
    print(f"seed {seed}")
    draw = np.random.default_rng(seed)
    write(tmp_path / "a.jsonl", [*TEXTS, ""], [f"id {at}" for at in range(24)])
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"text": 3, "key": "no text"}\n')
    options = {"column": "text", "id": "key", "part_rows": 5, "progress": False, "skip_invalid": True, "precision": precision}
    queries = tiny.encode(TEXTS[3:6])

    def encode(out):
        return mt.encode_corpus(None, tmp_path / "a.jsonl", out, tiny, **options)

    def search(out):
        with np.errstate(all="ignore"):  # damaged numbers may overflow before the damage is found
            return mt.semantic_search(queries, out, top_k=24)

    encode(tmp_path / "whole")
    whole, hits = contents(tmp_path / "whole"), search(tmp_path / "whole")
    found, resumed, messages = 0, 0, []
    for _ in range(COUNT // 2):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "out")
        done = damage(tmp_path / "out", draw)
        for _ in range(int(draw.integers(2))):
            done += "; " + damage(tmp_path / "out", draw, is_again=True)
        try:
            try:
                assert search(tmp_path / "out") == hits
                found += 1
            except mt.CorpusError as error:
                messages.append(str(error))
            try:
                encode(tmp_path / "out")
                assert search(tmp_path / "out") == hits and contents(tmp_path / "out").keys() == whole.keys()
                resumed += 1
            except mt.CorpusError as error:
                messages.append(str(error))
        except Exception:
            print(done)
            raise
    print(f"{found} searches found what they found before, {resumed} runs went on")
    wrong = [message for message in messages if not message.isprintable() or len(message) > 3000]
    assert not wrong, wrong
    assert resumed > COUNT / 10
