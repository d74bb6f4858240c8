"""Inputs: which files they are, in which order and format, and what is refused."""

import gzip
import json
import pathlib
import pickle
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import DataLossError, GristmillError, InputError, encode_frame
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.formats.file_formats import (
    HEAD_BYTES,
    format_of,
    parse_file_name,
)
from gristmill.transforms import RecordOptions, ShardNames
from gristmill.transforms.conversion.begin import begin_job, list_inputs
from gristmill.transforms.sources.find_inputs import (
    find_inputs,
    look_at_part,
    look_tasks,
    looked_files,
    match_files,
    match_inputs,
)
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_formats import look_at
from gristmill.transforms.sources.shards.source_split import list_shards
from tests.commands import conftest as commands
from tests.conversion.format_files import listed, put, put_in
from tests.conversion.other_formats import MAKERS, MORE, arrow_stream
from tests.support.conversion import contents, convert, dataset_of, job_of
from tests.support.records import (
    frames_of,
    small_records,
    text_records,
    write_array_records,
    write_tfrecords,
)
from tests.support.told import told

DATA = frames_of([b"one", b"two"])
FILES = {
    "b.tfrecord": DATA,
    "a.tfrecord": DATA,
    ".hidden": DATA,
    "_SUCCESS": b"",
    "_temporary/0/part": DATA,
    "sub/c.tfrecord": DATA,
}


@pytest.fixture
def folder(tmp_path):
    return put(tmp_path / "in", FILES)


def refused(*patterns, **options):
    with pytest.raises(InputError) as caught:
        find_inputs(list(map(str, patterns)), **options)
    return str(caught.value)


# Which files.


@pytest.mark.parametrize("end", ["", "/", "//", "/."])
def test_the_files_of_a_directory(folder, server, end):
    found = [pathlib.Path(info.path) for info in match_inputs(f"{folder}{end}")]
    assert found == [folder / "a.tfrecord", folder / "b.tfrecord"]
    if end in ("", "/"):
        # The console makes an object for a directory.
        for name, data in {**FILES, "": b""}.items():
            server.objects.put("bucket", f"in/{name}", data)
        paths = [info.path for info in match_inputs(f"gs://bucket/in{end}")]
        assert paths == ["gs://bucket/in/a.tfrecord", "gs://bucket/in/b.tfrecord"]


PATTERNS = """
*                     = a.tfrecord b.tfrecord
b* a*                 = a.tfrecord b.tfrecord
[ab].* ?.tfrecord a*  = a.tfrecord b.tfrecord
**/c* b*              = b.tfrecord sub/c.tfrecord
"""


@pytest.mark.parametrize("case", PATTERNS.strip().splitlines())
def test_the_files_of_patterns(folder, case):
    (folder / "_SUCCESS").unlink()
    patterns, expected = ([f"{folder}/{p}" for p in s.split()] for s in case.split("="))
    files = find_inputs(patterns)
    assert list(files.paths) == expected
    assert files.sizes.tolist() == [len(DATA)] * len(expected)
    assert f"{folder}/z*" in refused(f"{folder}/a*", f"{folder}/z*")


# DatasetDict.save_to_disk, Dataset.save_to_disk, the cache of load_dataset.
HUGGING_FACE = [
    {"dataset_dict.json": b'{"splits": ["train"]}', "train/data-0.arrow": b""},
    {
        "dataset_info.json": json.dumps({"features": {}}).encode(),
        "state.json": b"{}",
        "data-00000-of-00001.arrow": arrow_stream(),
    },
    {"dataset_info.json": b"{}", "c4-train.arrow": arrow_stream()},
]


@pytest.mark.parametrize("files", HUGGING_FACE)
def test_what_hugging_face_saved_is_named_with_a_cure(tmp_path, files):
    put(tmp_path, files)
    said = commands.refused(f"convert {tmp_path} {tmp_path}-out")
    assert "Hugging Face dataset" in said
    assert "to_parquet(FILE)" in said
    with pytest.raises(GristmillError) as caught:
        loader.open(tmp_path)
    assert "convert it with" not in str(caught.value)
    assert "TFDS directory" not in str(caught.value)


@pytest.mark.parametrize(
    "names", [["dataset.json"], ["dataset_info.json", "features.json"]]
)
def test_a_dataset_beside_other_inputs(folder, names):
    put(folder, dict.fromkeys(names, b"{}"))
    with told(InputError, "is not the only input", "convert it alone"):
        match_inputs(str(folder))


# Names of files, and what they say: dataset, split, count of files, id of the write.
NAMED = """
c4/c4-train.tfrecord-00000-of-00010               c4 train 10
a-b-c-train_1.tfrecords-0000000-of-1000000        a-b-c train_1 1000000
validation-00000-of-00128.tfrecord.gz             - validation
out-00000-of-00004.arrayrecord                    out
val2017_3.tfrecord                                - val
dir/dev/part-1.tfrecord                           - dev
dev/train-1.tfrecord                              - train
train_test_split.tfrecord                         -
pretrain/latest-trained-1.tfrecord                -
c4-train.array_record-0123456789abcdef-00003-of-00010 c4 train 10 0123456789abcdef
"""


def test_what_names_say():
    for line in NAMED.strip().splitlines():
        path, expected = line.split(maxsplit=1)
        found = " ".join(str(one or "-") for one in parse_file_name(path))
        assert found.rstrip(" -") == expected.rstrip(" -")


C4 = [f"c4-train.tfrecord-{n:05d}-of-00003" for n in range(3)]
C4 += ["c4-validation.tfrecord-00000-of-00001"]


@pytest.mark.parametrize(
    ("names", "pattern", "said"),
    [
        *((C4, p, "train (3 files), validation (1 file)") for p in ("*", "", "c4-*")),
        (["train/part-0", "val/part-0"], "*/part-*", "train (1 file), val"),
    ],
)
def test_files_of_several_splits_are_not_joined(here, names, pattern, said):
    put(here / "in", dict.fromkeys(names, DATA))
    with told(InputError, "belong to several splits", said, "`split`"):
        list_inputs(job_of(f"in/{pattern}", "out"))


@pytest.mark.parametrize(
    "names", [C4[:3], ["part-0", "part-1"], ["train-0", "other"], ["val-0", "val-1"]]
)
def test_files_of_one_split_are_joined(here, names):
    put(here / "in", dict.fromkeys(names, DATA))
    assert len(list_inputs(job_of("in/*", "out"))) == len(names)


def test_a_split_of_another_name_joins_them(here):
    put(here, dict.fromkeys(C4, DATA))
    files = list_inputs(job_of("c4*", "out", split="all", join_splits=True))
    assert len(files) == 4
    joined = "files of several splits are joined: train (3 files), validation (1 file)"
    assert files.notes() == [joined]
    for split, join in (("train", True), ("validation", True), ("all", False)):
        with told(InputError, "belong to several splits"):
            list_inputs(job_of("c4*", "out", split=split, join_splits=join))


def test_a_tfds_directory_is_named(here):
    put(here, dict.fromkeys(C4, DATA) | {"dataset_info.json": b'{"name": "c4"}'})
    for pattern, named in ((f"{here}/*tfrecord*", here), ("*tfrecord*", ".")):
        expected = f"give the TFDS directory {named}, which"
        with pytest.raises(InputError, match=expected):
            list_inputs(job_of(pattern, "/out"))


def test_files_of_one_name_become_shards_of_other_names(here):
    put(here, {"x/same": DATA, "y/same": DATA})
    job = job_of("?/same", "out", plan=("match_shards", None))
    assert "x/same and y/same" in list_inputs(job).notes()[0]
    assert convert(job).manifest.splits["train"].shards == 2
    named = {"plan": ("match_shards", None), "names": ShardNames(kind="inputs")}
    with pytest.raises(InputError, match=r"(?s)same.*x/same and y/same"):
        convert(job_of("?/same", "named", **named))


BESIDE = ShardNames(kind="beam", prefix="x", suffix=".arrayrecord")


# Inputs, the output, and what is said if that is among them. As a pattern, as the shell
# expands it, and as a directory; other functions write beside their inputs.
OVERLAPS = r"""
raw/*      raw      directory of its inputs
raw/x      raw/     directory of its inputs
raw        raw      directory of its inputs
raw/**     raw/out  raw/\*\* would match raw/out/dataset.json
**/x       x-out
raw/*      raw/out
*/*/*-of-* raw/out  would match raw/out/data-train.array_record-0
raw/**/*job* raw/out would match raw/out/index/data-train.job.json
raw/*x     beside
raw/*      beside   would match raw/dataset\.json
raw        beside   would match raw/dataset\.json
"""


@pytest.mark.parametrize("case", OVERLAPS.strip().splitlines())
@pytest.mark.parametrize("place", ["", "gs://bucket/"])
def test_a_later_run_finds_nothing_of_the_output_among_its_inputs(
    here, server, place, case
):
    inputs, output, said = [*case.split(None, 2), ""][:3]
    options = {"names": BESIDE} if output == "beside" else {}
    output = output.replace("beside", "raw")
    names = ["raw/a/job", "raw/a/x-00000-of-00001", "raw/x"]
    put(here, dict.fromkeys(names, DATA))
    for name, data in contents(here).items():
        server.objects.put("bucket", name, data)
    job = job_of(f"{place}{inputs}", f"{place}{output}", **options)
    if not said:
        begin_job(job)
        return
    with pytest.raises(InputError, match=said.replace("raw", f"{place}raw")):
        begin_job(job)
    found = [*server.objects.buckets["bucket"]] if place else [*contents(here)]
    assert sorted(found) == names


def test_the_shards_of_a_dataset(tmp_path):
    for split in ("test", "train"):
        dataset = dataset_of(tmp_path, [b"a"] * 3, split=split)
    both = [f"{dataset}/*-{split}*" for split in ("train", "test")]
    assert len(list(list_shards(both, None))) == 6
    with told(InputError, "several splits"):
        list(list_shards([f"{dataset}/*"], None))
    with told(InputError, "no ArrayRecord file"):
        list(list_shards([f"{tmp_path}/no*"], None))


# The parts in which workers look at the files.


def test_parts_in_any_order_and_twice(tmp_path):
    for number, kind in enumerate(("", "GZIP", "", "ZLIB", "")):
        write_tfrecords(tmp_path / str(number), text_records(3), compression=kind)
    files = match_files([str(put(tmp_path, {"5": b"PAR1", "6": b"\xfe\x01"}))])
    tasks = [*look_tasks("train", files, part_files=3)]
    assert [len(task.files) for task in tasks] == [3, 3, 1]
    gathered = Gathered()
    for task in (*tasks[:0:-1], *tasks[1:]):
        look_at_part(pickle.loads(pickle.dumps(task))).gather(gathered)
    with told(DataLossError, "not all parts of the listing"):
        looked_files(gathered, "train")
    look_at_part(tasks[0]).gather(gathered)
    assert looked_files(gathered, "train") == (files, look_at(files))


# Formats: known by their first bytes, asked for, or refused by name.


READ = {known.found_as for known in FORMATS.values()}


@pytest.mark.parametrize(
    ("name", "make"), [*MAKERS.items(), *MORE], ids=[*MAKERS, *(n for n, _ in MORE)]
)
def test_each_format_is_read_or_named_with_what_to_do(tmp_path, name, make):
    found = format_of(make()[:HEAD_BYTES])
    assert found.name == name
    assert found.cure
    if (name, make) in MORE:
        return
    path = put_in(tmp_path, make())
    if name.rpartition("compressed ")[2] not in READ:
        assert name in refused(path)
        return
    assert name.endswith(FORMATS[listed(path).spec.format].found_as)


def name_of(data):
    found = format_of(data[:HEAD_BYTES])
    return None if found is None else found.name


HEADS = {
    "text": [b"x", b"hi\n", b"a b\n", "é\n".encode()],
    "JSON lines": [b"{}\n"],
    "JSON array": [b"[]"],
    # Frames whose length begins like the magic numbers of zlib and gzip, or of text.
    "TFRecord": [
        *(encode_frame(bytes(n)) for n in (0x9C78, 0x8B1F)),
        frames_of([b'{"a": 1}\n' * 999]),
    ],
    "zlib-compressed TFRecord": [
        *(zlib.compress(DATA, n) for n in (0, 1, 9)),
        zlib.compress(frames_of([b'{"a": 1}\n' * 999])),
    ],
    # Too short, or with a damaged checksum.
    None: [
        *(DATA[:1], DATA[:4], b"\n", b"\xff", b"\x1fa"),
        *(struct.pack("<QI", n, 0) for n in (0x9C78, 0x0178, 0x8B1F)),
    ],
}


@pytest.mark.parametrize("name", HEADS)
def test_short_files_and_frames_of_text(name):
    for data in HEADS[name]:
        assert name_of(data) == name, data


@given(small_records(), st.integers(0, 95), st.sampled_from([bytes, gzip, zlib]))
def test_damaged_tfrecords_are_of_no_other_format(records, bit, compression):
    data = frames_of([*records, b"record"])
    if compression is not bytes:
        data = compression.compress(data)
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    found = name_of(bytes(damaged))
    assert found is None or found.endswith("TFRecord")


LINES, TEXT, TABLE, PARQUET = (
    MAKERS[name]() for name in ("JSON lines", "text", "CSV", "Parquet")
)
# Files together, and what the error says of them.
MIXED = {
    "many of other formats": (
        {f"{n}.parquet": PARQUET for n in range(5)} | {"a.csv": TABLE, "b": DATA},
        [
            "6 of 7 input files are not TFRecord files",
            "/2.parquet and 2 more",
            "got:      Parquet (5), CSV (1)",
            "convert each format separately: `gristmill append` adds records",
        ],
    ),
    "a stray file among lines": (
        {f"{n}.jsonl": LINES for n in range(3)} | {"README": TEXT},
        [
            "not a JSON lines file, but text\n",
            "/README",
            "leave out other files than JSON lines",
        ],
    ),
    **{
        f"what describes a dataset, {name}": ({name: b"{}", "in": DATA}, [cure])
        for name, cure in {
            "dataset.json": "a dataset of ArrayRecord files",
            "dataset_info.json": "give its directory alone",
            "features.json": "give its directory alone",
        }.items()
    },
    **{
        f"{name} beside damaged TFRecords, {number}": (
            {f"{n}.txt": MAKERS[name]() for n in range(3)} | {"in": damaged},
            ["3 of 4 input files are not TFRecord files", "`input_format`"],
        )
        for name in ("text", "CSV", "JSON lines")
        for number, damaged in enumerate((DATA[1:], bytes(4096), DATA[:5]))
    },
}


@pytest.mark.parametrize("name", MIXED)
def test_files_of_several_formats(tmp_path, name):
    files, words = MIXED[name]
    message = refused(put(tmp_path / "in", files) / "*")
    for word in words:
        assert word in message
    # Text that is all there is to read is not set aside for damaged frames either.
    if "beside damaged" in name:
        assert words[0] in refused(tmp_path / "in/*", allow_other_formats=True)


def test_array_records_among_others(tmp_path):
    write_array_records(tmp_path / "in", [b"one"])
    assert listed(tmp_path / "in").spec.format == "arrayrecord"
    # What describes them is not one of them.
    put(tmp_path, {"dataset.json": MAKERS["JSON"]()})
    assert "give their directory alone" in refused(tmp_path / "*")
    (tmp_path / "dataset.json").unlink()
    put(tmp_path, {"other": DATA})
    assert "`gristmill index`" in refused(tmp_path / "*")


def test_what_a_file_looks_like_and_what_is_asked_for(tmp_path):
    put(tmp_path, {"a": b"", "b": LINES, "c": b'name\n"a text,\nof two lines"\n'})
    lines = find_inputs([f"{tmp_path}/[ab]"], allow_empty_files=True)
    assert lines.spec.format == "jsonl"  # Empty files say nothing of others.
    assert listed(tmp_path / "c").spec.format == "text"
    assert listed(tmp_path / "c", input_format="csv").spec.format == "csv"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": ("a", "b")}, "`columns` a,b"),
        ({"record": "example"}, "`record` example"),
    ],
)
def test_options_that_are_for_tables(tmp_path, options, words):
    put_in(tmp_path, DATA)
    message = refused(tmp_path / "in", options=RecordOptions(**options))
    assert "not for TFRecord files" in message
    assert words in message
