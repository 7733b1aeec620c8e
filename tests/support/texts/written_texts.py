"""Texts, and files of them in every format."""

import csv
import json

SUFFIXES = [".txt", ".jsonl", ".csv", ".tsv", ".parquet"]
_WORDS = ["a bird", "", "the bird sings", "dawn", "in the tree", "sings"]
TEXTS = [f"{_WORDS[at % 6]} {_WORDS[at // 6 % 6]}" for at in range(23)]


def write(path, texts, ids=None, rows=3):
    """Write texts, and ids where the format has columns, in the format of a path's suffix; ``rows`` in a group of Parquet."""
    ids = list(range(len(texts))) if ids is None else ids
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"key": ids, "text": texts}), path, row_group_size=rows)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "key": id}) + "\n" for text, id in zip(texts, ids, strict=True)))
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if path.suffix == ".csv" else "\t")
            writer.writerows([("key", "text"), *zip(ids, texts, strict=True)])
    else:
        path.write_text("".join(text + "\n" for text in texts), encoding="utf-8", newline="")
    return path
