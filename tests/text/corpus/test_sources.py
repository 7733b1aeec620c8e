"""Files of texts: every format gives the same rows, whole or in spans, and says what is wrong with a file."""

import needs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from written_texts import SUFFIXES, write

import mha_text as mt
from mha_text.corpus.plan import Plan, scan
from mha_text.corpus.rows import Columns, Span
from mha_text.corpus.sources import FORMATS, Source, find, numbered_rows

pytestmark = needs.installed("pyarrow")
COLUMNS = Columns("text", "key")


def columns_of(path):
    return Columns() if path.suffix == ".txt" else COLUMNS


def rows_in_parts(paths, columns, part_rows):
    """Return (text, id) of all rows as they are read part by part, with the sizes of the parts."""
    step = part_rows or 512
    files = [scan(columns, (at, source, step))[1] for at, source in enumerate(find(paths, columns))]
    plan = Plan.of(files, part_rows)
    parts = list(plan.parts())
    rows_of_parts = [[row for _, _, row in numbered_rows(part.spans, columns)] for part in parts]
    assert [len(rows) for rows in rows_of_parts] == [part.rows for part in parts]
    assert [part.first for part in parts] == [sum(part.rows for part in parts[:at]) for at in range(len(parts))]
    assert [part.name for part in parts] == sorted({part.name for part in parts})
    return [row for rows in rows_of_parts for row in rows], [part.rows for part in parts]


_letters = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\n\r\x00"), max_size=8)
_any = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=8)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), part_rows=st.integers(1, 9))
def test_all_rows_are_read_once_and_in_order_however_files_are_cut(tmp_path, suffix, data, part_rows):
    files = data.draw(st.lists(st.lists(_letters if suffix == ".txt" else _any, max_size=12), min_size=1, max_size=3))
    if suffix == ".txt":  # a byte order mark at the start of a file is none of its text
        files = [[text.removeprefix("\ufeff") for text in texts] for texts in files]
    paths = [write(tmp_path / f"{at}{suffix}", texts) for at, texts in enumerate(files)]
    rows, sizes = rows_in_parts(paths, columns_of(paths[0]), part_rows)
    assert [row.reason for row in rows] == [None] * len(rows)
    assert [row.text for row in rows] == [text for texts in files for text in texts]
    assert all(1 <= size <= part_rows for size in sizes)
    if suffix != ".txt":
        as_read = str if suffix in (".csv", ".tsv") else int
        assert [row.id for row in rows] == [as_read(at) for texts in files for at in range(len(texts))]


def test_a_corpus_is_cut_into_parts_by_its_size_alone(tmp_path):
    for count, expected in ((1, [1]), (512, [512]), (513, [512, 1]), (512 * 65, [1024] * 32 + [512])):
        path = write(tmp_path / "x.txt", ["a"] * count)
        assert rows_in_parts([path], Columns(), None)[1] == expected
    files = [scan(Columns(), (0, Source(path, "lines"), 512))[1]] * 40
    assert Plan.of(files, None).part_rows == 8192
    assert sum(part.rows for part in Plan.of(files, None).parts()) == 40 * 512 * 65


def test_small_files_share_a_part(tmp_path):
    paths = [write(tmp_path / f"{at}.txt", ["a", "b"]) for at in range(5)]
    assert rows_in_parts(paths, Columns(), 4)[1] == [4, 4, 2]


def read(path, columns=COLUMNS):
    (source,) = find(path, columns)
    scan(columns, (0, source, 2))
    return list(FORMATS[source.format].read(Span(str(path), source.format), columns))


def reasons(path, columns=COLUMNS):
    """The reasons of rows without a text, by their numbers from 0."""
    return {at: row.reason for at, row in enumerate(read(path, columns)) if row.reason is not None}


def test_blank_lines_are_rows_of_text_and_no_rows_of_other_formats(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfa\r\n\r\nb")
    assert [row.text for row in read(tmp_path / "x.txt", Columns())] == ["a", "", "b"]
    (tmp_path / "x.jsonl").write_bytes(b'\n{"text": "a", "key": 1}\n\n \n{"text": "b", "key": 2}\n\n')
    assert [(row.text, row.id) for row in read(tmp_path / "x.jsonl")] == [("a", 1), ("b", 2)]
    (tmp_path / "x.csv").write_bytes(b'\xef\xbb\xbftext,key\r\n\r\na,1\r\n\r\n"b\n\n""c""",2')
    assert [(row.text, row.id) for row in read(tmp_path / "x.csv")] == [("a", "1"), ('b\n\n"c"', "2")]


def test_rows_without_a_text_say_why(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a\n\xc3\x28\nb\n")
    assert reasons(tmp_path / "x.txt", Columns()) == {1: "not valid UTF-8 (byte 1 of the line: invalid continuation byte)"}
    rows = {
        '{"text": null, "key": 1}': "text is null",
        '{"text": 7, "key": 1}': "text is a value of type int",
        '{"key": 1}': "has no field 'text': its fields are key",
        "[1]": "holds a JSON list; expected an object with the field 'text'",
        "{": "not valid JSON: Expecting property name enclosed in double quotes: line 2 column 1 (char 2)",
        "\udcff": "not valid UTF-8 (byte 1 of the row: invalid start byte)",
        '{"text": "a", "key": 1.5}': "key is a value of type float; an id is an integer or a string",
        '{"text": "a", "key": true}': "key is a value of type bool; an id is an integer or a string",
        '{"text": "\\ud800", "key": 1}': "text cannot be written as UTF-8: surrogates not allowed at character 1",
    }
    lines = ['{"text": "a", "key": 1}', *rows]
    (tmp_path / "x.jsonl").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    assert reasons(tmp_path / "x.jsonl") == dict(enumerate(rows.values(), start=1))
    (tmp_path / "x.csv").write_bytes(b'key,text\n1,a\n2\n3,"a"b\n4,\xff\n5,\n')
    assert reasons(tmp_path / "x.csv") == {
        1: "has 1 values; the header has 2",
        2: "not valid CSV: ',' expected after '\"'",
        3: "not valid UTF-8 (byte 3 of the row: invalid start byte)",
    }


def test_parquet_strings_of_every_kind_and_their_nulls(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = ["a", None, "b"]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        for ids in (pa.array([1, 2, 3], pa.uint8()), pa.array(["x", "y", None])):
            pq.write_table(pa.table({"text": pa.array(texts).cast(kind), "key": ids, "more": texts}), tmp_path / "x.parquet")
            rows = read(tmp_path / "x.parquet")
            assert [row.text for row in rows if row.reason is None] == ["a", "b"][: 2 - ids.null_count]
            assert rows[1].reason == "text is null"
            assert ids.null_count == 0 or rows[2].reason == "key is null; an id is an integer or a string"
    wrong = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    pq.write_table(pa.table({"text": wrong}), tmp_path / "x.parquet")
    assert reasons(tmp_path / "x.parquet", Columns("text")) == {0: "not valid UTF-8 (byte 1 of the row: invalid start byte)"}


def test_files_that_are_not_what_they_should_be(tmp_path):
    for suffix in (".csv", ".parquet", ".txt"):
        write(tmp_path / f"x{suffix}", ["a"])
    (tmp_path / "twice.csv").write_text("text,text\na,b\n")
    (tmp_path / "open.csv").write_bytes(b'text\n"' + b"a" * (1 << 20) + b"\n" * 3 + b"a" * (1 << 26))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-20])
    (tmp_path / "x.csv.gz").touch()
    for name, columns, message in (
        ("x.csv", Columns("words"), r"x\.csv has no column 'words': its columns are key, text"),
        ("twice.csv", Columns("text"), "has more than one column 'text'"),
        ("open.csv", Columns("text"), "longer than 67108864 bytes: a quote is not closed"),
        ("x.parquet", Columns("words"), r"x\.parquet has no column 'words': its columns are key, text"),
        ("x.parquet", Columns("key"), "column 'key' holds int64; expected strings"),
        ("cut.parquet", COLUMNS, r"cut\.parquet is not a Parquet file, or is damaged"),
        ("x.csv", Columns(), r"x\.csv has columns: say which one holds the texts"),
        ("x.txt", COLUMNS, r"x\.txt has lines of text, and no columns"),
        ("x.csv.gz", COLUMNS, r"x\.csv\.gz is compressed"),
    ):
        with pytest.raises(mt.CorpusError, match=message):
            read(tmp_path / name, columns)


def test_folders_and_patterns_give_their_files_sorted_and_marks_of_writers_are_passed_over(tmp_path):
    for name in ("b/2.csv", "b/10.csv", "a.csv", "_SUCCESS", ".x.crc", "b/_temporary/9.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, ["a"]) if name.endswith("csv") else (tmp_path / name).touch()
    names = ["a.csv", "b/10.csv", "b/2.csv"]
    assert [source.path for source in find(tmp_path, COLUMNS)] == [tmp_path / name for name in names]
    assert [source.path for source in find(f"{tmp_path}/b/*.csv", COLUMNS)] == [tmp_path / name for name in names[1:]]
    with pytest.raises(FileNotFoundError, match=r"no file matches '.*c\*.csv'"):
        find(tmp_path / "c*.csv", COLUMNS)
    with pytest.raises(FileNotFoundError, match="there are no files of texts"):
        find([], COLUMNS)
    (tmp_path / "notes.md").touch()
    with pytest.raises(mt.CorpusError, match=r"holds notes\.md, whose format is not known: give a pattern such as"):
        find(tmp_path, COLUMNS)
