"""Directories as people have them: what is data is, and the rest is never a record."""

import datetime
import gzip
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from click.testing import CliRunner

from gristmill import loader
from gristmill.pipelines.commands.main import cli
from tests.conversion.format_files import put
from tests.conversion.tars import tar_of
from tests.support.examples import parsed

LATE = datetime.datetime(9999, 12, 31)
MICROSECONDS = pa.timestamp("us")
README = "# Title\n\nNo data.\n"


def convert(folder, inputs, *options):
    words = ["convert", str(inputs), f"{folder}/out", "--workers", "1"]
    return CliRunner().invoke(cli, [*words, *options])


def lines(*values):
    return "".join(json.dumps({"text": value}) + "\n" for value in values).encode()


def table(*values):
    return pa.table({"text": list(values)})


def rows_in(output, split="train"):
    return [*map(parsed, loader.open(output, split, cache_dir=""))]


def with_window(data):
    asked = zstandard.ZstdCompressionParameters(window_log=31)
    file = zstandard.ZstdCompressor(compression_params=asked).compressobj()
    return file.compress(data) + file.flush()


# Files of a directory, and the texts of each split.
READ = {
    "a readme above lines": (
        {"README.md": README, "LICENSE": "MIT\n", "data/train.jsonl": lines("a", "b")},
        {"train": ["a", "b"]},
    ),
    "a readme in lower case above compressed lines of two splits": (
        {
            "readme.md": f"\n{README}",
            "data/train.jsonl.gz": gzip.compress(lines("a")),
            "data/test.jsonl.gz": gzip.compress(lines("b")),
        },
        {"train": ["a"], "test": ["b"]},
    ),
    "a readme with a byte order mark that names the files": (
        {
            "README.md": "\ufeff---\nconfigs:\n- config_name: default\n  data_files:\n"
            "  - split: dev\n    path: x/*.jsonl\n---\n",
            "x/1.jsonl": lines("a"),
            "y/2.jsonl": lines("b"),
        },
        {"dev": ["a"]},
    ),
    "a license beside lines": (
        {"LICENSE.txt": "MIT\n", "a.jsonl": lines("a")},
        {"train": ["a"]},
    ),
    "the first part of large splits, as the Hub converts them": (
        {
            "default/partial-train/0000.parquet": table("a", "b"),
            "default/partial-test/0000.parquet": table("c"),
        },
        {"train": ["a", "b"], "test": ["c"]},
    ),
    "one whole split and a part of another": (
        {
            "default/train/0000.parquet": table("a"),
            "default/partial-validation/0000.parquet": table("b"),
        },
        {"train": ["a"], "validation": ["b"]},
    ),
    "quotes that are plain characters": (
        {"a.tsv": 'n\ttext\n1\t"a\n2\tb" c\n3\t"\n'},
        {"train": ['"a', 'b" c', '"']},
    ),
    "a table with a column of row numbers without a name": (
        {"a.csv": ",text\n0,a\n1,b\n"},
        {"train": ["a", "b"]},
    ),
    "a separator after the last column": (
        {"a.csv": "text,n,\na,1,\nb,2,\n"},
        {"train": ["a", "b"]},
    ),
    "arrays on one line, of a repository": (
        {
            "README.md": README,
            "train.json": '[{"text": "a", "n": [[1], []]}]',
            "test.json": '\ufeff[{"text": "b\\n"}]\n',
        },
        {"train": ["a"], "test": ["b\n"]},
    ),
    "a compressed array without values, and one with": (
        {
            "a.json.gz": gzip.compress(b"[\n   \n]"),
            "b.json.gz": gzip.compress(b'[{"text": "a"},\n\n{"text": "b"}]'),
        },
        {"train": ["a", "b"]},
    ),
    "lines compressed with a window of 2 GiB": (
        {"a.jsonl.zst": with_window(lines("a", "b"))},
        {"train": ["a", "b"]},
    ),
    "some files of a set, by their pattern": (
        {f"x-0000{n}-of-00004.jsonl": lines(str(n)) for n in (0, 1, 3)},
        {"train": ["0", "1"]},
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_data_is_read(tmp_path, name):
    files, splits = READ[name]
    inputs = str(put(tmp_path / "in", files))
    if "pattern" in name:
        inputs += "/x-0000[01]-of-*"
    output = tmp_path / "out"
    kind = "tsv-unquoted" if "plain characters" in name else "auto"
    ended = convert(tmp_path, inputs, "--input-format", kind)
    assert ended.exit_code == 0, ended.output
    manifest = json.loads((output / "dataset.json").read_bytes())
    assert manifest["splits"].keys() == splits.keys()
    for split, texts in splits.items():
        assert [row["text"][0].decode() for row in rows_in(output, split)] == texts


def column(text):
    """Returns a column of a type, or of lists of it, with values in JSON."""
    name, values = text.split(maxsplit=1)
    kind = pa.type_for_alias(name.removesuffix("[]"))
    kind = pa.list_(kind) if name.endswith("[]") else kind
    return pa.table({"a": pa.array(json.loads(values), kind)})


def convert_columns(folder, columns):
    tables = {f"{n}.parquet": column(text) for n, text in enumerate(columns.split("|"))}
    return convert(folder, put(folder / "in", tables))


# Columns of the files of a split, and the values in all. As pandas writes them: doubles
# where integers have gaps, no type where there are no rows.
COLUMNS = """
int8 [1, -2] | int64 [3] | uint32 [4]        = [[1], [-2], [3], [4]]
uint8 [255] | int8 [-1]                      = [[255], [-1]]
int64 [1152921504606846976] | double [2.0, null] = [[1152921504606846976], [2], []]
double [2.0, null] | int64 [1152921504606846976] = [[2], [], [1152921504606846976]]
null[] [[], []] | int64[] [[7, 8]]           = [[], [], [7, 8]]
int64[] [[7]] | null[] [[]]                  = [[7], []]
null [null] | string ["x"]                   = [[], ["x"]]
string ["x"] | null [null]                   = [["x"], []]
null [] | int64 [1]                          = [[1]]
"""


@pytest.mark.parametrize("case", COLUMNS.strip().splitlines())
def test_types_that_differ_get_the_one_that_holds_all(tmp_path, case):
    columns, values = case.split("=")
    ended = convert_columns(tmp_path, columns)
    assert ended.exit_code == 0, ended.output
    rows = [row.get("a", []) for row in rows_in(tmp_path / "out")]
    assert json.loads(json.dumps(rows, default=bytes.decode)) == json.loads(values)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ("int64 [1] | double [1.5]", "1.parquet, row group 0, row 0 .* 1.5"),
        ("int64 [1] | uint64 [1]", "int64 .* uint64|uint64 .* int64"),
        ('int64 [1] | string ["a"]', "int64 .* string|string .* int64"),
        ("float [1.5] | int8 [1]", "float .* int8|int8 .* float"),
    ],
)
def test_types_without_a_common_one_are_named(tmp_path, columns, named):
    ended = convert_columns(tmp_path, columns)
    assert ended.exit_code != 0
    assert re.search(named.replace(" .* ", r"[\s\S]*"), ended.output), ended.output


def convert_times(folder, times, kind):
    """Converts a column in the type that Spark gives to times, INT96."""
    table = pa.table({"a": pa.array(times, kind)})
    path = f"{folder}/a.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    return convert(folder, path)


@pytest.mark.parametrize(
    ("time", "kind"),
    [
        (LATE, MICROSECONDS),
        (datetime.datetime(1500, 1, 1), MICROSECONDS),
        ([datetime.datetime(2000, 1, 1), LATE], pa.list_(MICROSECONDS)),
        ({"b": LATE}, pa.struct({"b": MICROSECONDS})),
    ],
    ids=["late", "early", "in a list", "in a struct"],
)
def test_times_beyond_their_unit_are_refused(tmp_path, time, kind):
    ended = convert_times(tmp_path, [time], kind)
    assert ended.exit_code != 0
    for word in ("column 'a'", "rows 0 to 0", "a.parquet", "--columns"):
        assert word in ended.output


def test_times_within_it_are_kept(tmp_path):
    time = datetime.datetime(1960, 12, 31, 1, 1, 1, 123457)
    ended = convert_times(tmp_path, [time, None], MICROSECONDS)
    assert ended.exit_code == 0, ended.output
    since = time - datetime.datetime(1970, 1, 1)
    first = {"a": [since // datetime.timedelta(microseconds=1) * 1000]}
    assert rows_in(tmp_path / "out") == [first, {}]


def with_dictionary():
    samples = [lines(f"text {n}" * 9) for n in range(999)]
    found = zstandard.train_dictionary(2000, samples, dict_id=7)
    return zstandard.ZstdCompressor(dict_data=found).compress(lines("text 1" * 9))


DELTA = {"a.parquet": table("a"), "gone.parquet": table("b")}
# Files of a directory, and what the error names, behind what stands for them.
REFUSED = {
    "a table of Delta Lake": (
        {**DELTA, "_delta_log/00000000000000000000.json": "{}"},
        "Delta Lake | _delta_log | deltalake",
    ),
    "a table of Delta Lake in partitions": (
        {"d=1/a.parquet": table("a"), "_delta_log/0.json": "{}"},
        "Delta Lake",
    ),
    "a table of Iceberg": (
        {"data/a.parquet": table("a"), "metadata/v1.metadata.json": "{}"},
        "Iceberg | v1.metadata.json | pyiceberg",
    ),
    "a table of Hudi": ({**DELTA, ".hoodie/hoodie.properties": ""}, "Hudi"),
    "a repository with files of two formats": (
        {"README.md": README, "data/a.jsonl": lines("a"), "data/b.csv": "text\nb\n"},
        "several formats | data/a.jsonl | data/b.csv | --split",
    ),
    "a set without a file": (
        {f"x-0000{n}-of-00004.jsonl": lines("a") for n in (0, 1, 3)},
        "missing | x-00002-of-00004.jsonl | 4 files",
    ),
    "a set without its last file, by a pattern": (
        {f"x-0000{n}-of-00003.txt": "a\n" for n in (0, 1)},
        "/*.txt: missing | x-00002-of-00003.txt",
    ),
    "two sets of one name": (
        {
            "x-00000-of-00001.jsonl": lines("a"),
            **{f"x-0000{n}-of-00002.jsonl": lines("a") for n in (0, 1)},
        },
        "several sets | 1 of 1, 2 of 2 | x-*-of-00002",
    ),
    "a tar whose members are apart": (
        {"a.tar": tar_of([(n, b"x") for n in ("0.txt", "1.txt", "0.cls")])},
        "apart in a tar | a.tar | sample | --sort=name",
    ),
    "rows that quotes of plain characters join": (
        {"a.tsv": 'n\ttext\n1\t"a\n2\tb"\n'},
        "a.tsv | line 2 | whole rows | --input-format tsv-unquoted",
    ),
    "rows that quotes join at the end of a file": (
        {"a.tsv": 'n\ttext\n0\tx\n1\t"a\n2\tb"'},
        "a.tsv | line 3 | whole rows | --input-format tsv-unquoted",
    ),
    "a quote that is a plain character": (
        {"a.tsv": 'n\ttext\n1\t"a\n2\tb\n'},
        "a.tsv | never closed | --input-format tsv-unquoted",
    ),
    "a bare quote in a column, and its end in another": (
        {"a.tsv": 'a\ttext\n"a\tb"\n'},
        "a.tsv | number of fields | --input-format tsv-unquoted",
    ),
    "an array with a comma at its end": (
        {"a.json": '[{"text": "a"},\n]'},
        "element 2 | a.json | not valid JSON",
    ),
    "an array whose elements have no type in common": (
        {"a.json": '[{"a": 1},\n{"a": "x"}]'},
        "a.json, element 2 | '*,a:string' | '*,a:json'",
    ),
    "an array that was cut after a separator": (
        {"a.json": '[{"text": "a"},'},
        "no end | a.json",
    ),
    "a byte order mark within an array": (
        {"a.json": '[{"text": "a"},\ufeff{"text": "b"}]'},
        "a.json, element 2 | BOM",
    ),
    "a byte order mark before a later line": (
        {"a.jsonl": b"\n".join([lines("a"), "\ufeff".encode() + lines("b")])},
        "a.jsonl, line 3 | BOM",
    ),
    "columns without values": (
        {"a.parquet": pa.table({"a": pa.nulls(0)})},
        "no column | a.parquet",
    ),
    "a table that is encrypted": (
        {"a.parquet": b"PARE" + bytes(100) + b"PARE"},
        "/*: encrypted | without encryption | a.parquet",
    ),
    "an array of texts": ({"a.json": '["a", "b"]'}, "a.json | JSON object"),
    "a set of a count that nobody has": (
        {"x-00000-of-99999999999.txt": "a\n"},
        "/x-*: missing | x-00001-of-99999999999.txt",
    ),
    "text of 16 bits a character": (
        {"a.csv": "a,b\n1,2\n".encode("utf-16")},
        "/a.csv: UTF-16 | iconv",
    ),
    "text of 16 bits, of the other order": (
        {"a.txt": b"\xfe\xff" + "some text\n".encode("utf-16-be")},
        "/a.txt: UTF-16",
    ),
    "lines in Latin-1": (
        {"a.jsonl": '{"text": "caf\xe9 au lait"}\n'.encode("latin-1")},
        "/a.jsonl: not UTF-8 | iconv",
    ),
    "a NUL in a text": ({"a.txt": b"some \x00 text\n" * 3}, "/a.txt: control"),
    "an end of file of DOS": ({"a.jsonl": lines("a") + b"\x1a"}, "control"),
    "lines that need a dictionary of zstd": (
        {"a.jsonl.zst": with_dictionary()},
        "a.jsonl.zst | dictionary 7 | zstd -d -D",
    ),
    "an archive of the web, compressed": (
        {"a.warc.gz": gzip.compress(b"WARC/1.0\r\nWARC-Type: warcinfo\r\n\r\n")},
        "/a.warc.gz: WARC | gristmill.dataset.Writer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_none_is_refused_by_name(tmp_path, name):
    files, named = REFUSED[name]
    pattern, _, words = named.rpartition(": ")
    ended = convert(tmp_path, f"{put(tmp_path / 'in', files)}{pattern}")
    assert ended.exit_code != 0, ended.output
    for word in words.split(" | "):
        assert word in ended.output
    assert not (tmp_path / "out/dataset.json").exists()


@pytest.mark.parametrize("skips", [[], ["--nulls", "skip"]])
def test_the_first_row_that_no_record_holds_is_named(tmp_path, skips):
    table = pa.table(
        {
            "a": pa.array([1, None, 3, 1 << 63], pa.uint64()),
            "b": pa.array([[1], [1], [None], [1]]),
        }
    )
    ended = convert(tmp_path, put(tmp_path / "in", {"a.parquet": table}), *skips)
    assert ended.exit_code != 0
    row = 3 if skips else 2
    assert f"a.parquet, row group 0, row {row}\n" in ended.output


@pytest.mark.parametrize(
    ("ending", "text"),
    [("jsonl", '{"a": "b"}\n\n{"a": "caf\xe9"}\n'), ("csv", "a\nb\ncaf\xe9\n")],
)
def test_who_names_the_format_learns_the_line(tmp_path, ending, text):
    inputs = put(tmp_path / "in", {"a": text.encode("latin-1")})
    ended = convert(tmp_path, inputs, "--input-format", ending)
    assert ended.exit_code != 0
    assert "line 3" in ended.output
