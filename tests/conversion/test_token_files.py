"""Files of tokens of other tools: the same documents, in any number of shards."""

import functools
import gzip
import itertools
import json
import os
import pathlib
import random
import struct

import numpy as np
import pytest

from gristmill import loader
from tests.commands.conftest import run
from tests.support.watched import at_storage

pytestmark = pytest.mark.usefixtures("here")
END = 2
RNG = random.Random(0)
DOCUMENTS = [
    [*(RNG.randrange(3, 60_000) for _ in range(RNG.choice((0, 1, 5, 40, 300)))), END]
    for _ in range(200)
]


def write(**files):
    """Writes files, by names with _ for the dot."""
    for name, data in files.items():
        pathlib.Path(name.replace("_", ".")).write_bytes(data)


def megatron(dtype="<u2", code=8, part=3):
    """Each document is in two sequences, where it is long enough."""
    sequences = [some for each in DOCUMENTS for some in (each[:part], each[part:])]
    lengths = np.array([*map(len, sequences)], "<i4")
    pointers = (np.cumsum(lengths, dtype="<i8") - lengths) * np.dtype(dtype).itemsize
    bounds = np.arange(0, len(sequences) + 1, 2, dtype="<i8")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(bounds))
    index = head + b"".join(each.tobytes() for each in (lengths, pointers, bounds))
    write(in_idx=index, in_bin=flat(dtype))
    return ["in.bin", "--input-format", "megatron"]


def flat(dtype):
    return np.array([token for each in DOCUMENTS for token in each], dtype).tobytes()


def nano():
    write(in_bin=flat("<u2"))
    return ["in.bin", "--input-format", "flat", "--record", f"uint16:{END}"]


def numpy_file():
    np.save("in.npy", np.frombuffer(flat("<i4"), "<i4"))
    return ["in.npy", "--input-format", "flat", "--record", f"int32:{END}"]


def olmo():
    ends = np.cumsum([*map(len, DOCUMENTS)]).tolist()
    rows = [
        f"{begin},{end},id{number},a.json,{number}\n"
        for number, (begin, end) in enumerate(itertools.pairwise([0, *ends]))
    ]
    write(in_npy=flat("<u4"), in_csv_gz=gzip.compress("".join(rows).encode()))
    return ["in.npy", "--input-format", "olmo", "--record", "uint32"]


def olmo_by_end():
    write(in_npy=flat("<u2"))
    return ["in.npy", "--input-format", "olmo", "--record", f"uint16:{END}"]


def mds(kind="ndarray", before=b"\x21"):
    samples = []
    for number, each in enumerate(DOCUMENTS):
        url, ids = f"u{number}".encode(), np.array(each, "<i4").tobytes()
        value = before + struct.pack("<BH", 1 << 2 | 1, len(each)) + ids
        head = struct.pack("<IIq", len(value), len(url), number)
        samples.append(head + value + url)
    first = 4 + 4 * (len(samples) + 1)
    places = first + np.cumsum([0, *map(len, samples)])
    head = struct.pack("<I", len(samples)) + places.astype("<u4").tobytes()
    shard = {
        "column_names": ["n", "tokens", "url"],
        "column_encodings": ["int", kind, "str"],
        "column_sizes": [8, None, None],
        "raw_data": {"basename": "in.mds"},
    }
    index = json.dumps({"shards": [shard]}).encode()
    write(in_mds=head + b"".join(samples), index_json=index)
    return ["in.mds", "--input-format", "mds"]


WRITERS = {
    "megatron": megatron,
    "megatron of int32": lambda: megatron("<i4", 4),
    "flat": nano,
    "flat npy": numpy_file,
    "olmo": olmo,
    "olmo by end": olmo_by_end,
    "mds": mds,
    "mds of a known type": lambda: mds("ndarray:int32", b""),
}


def pack(given, *more, code=0):
    line = "pack --length 512 --workers 1"
    return run(line, *given, "out", *more, code=code).output


def packed():
    """Returns the dataset, and the ids of each row."""
    data = loader.open("out")
    rows = loader.PackedRows.of(data)([*data])
    pairs = zip(rows["inputs"], rows["inputs_segmentation"], strict=True)
    return data, [ids[segments > 0].tolist() for ids, segments in pairs]


@pytest.mark.parametrize("shards", [1, 7])
@pytest.mark.parametrize("name", WRITERS)
def test_documents_are_those_of_the_file(name, shards):
    given = WRITERS[name]()
    pack(given, "--pack", "none", "--num-shards", str(shards))
    data, found = packed()
    assert found == DOCUMENTS
    assert data.facts.shards == shards
    run("verify out")
    text = run("trace out --records 199").output
    assert given[0] in text
    assert "offset" in text


LIST = b"0,9\n9,5\n5,%d\n" % (len(flat("<u4")) // 4)
OTHER = b'"shards": [{"raw_data": {"basename": "other.mds"}}, '
# What is written, a file of it, what it becomes; the exit code, and what is said.
WRONG = {
    "no index": (megatron, "in.idx", None, "2: in.idx"),
    "a shorter file": (megatron, "in.bin", flat("<u2")[:-2], "3: one after the other"),
    "another index": (
        *(megatron, "in.idx", b"MMIDIDX\0\1" + bytes(40)),
        "3: no index of version 1",
    ),
    "half an id": (nano, "in.bin", flat("<u2") + b"\0", "3: bytes of uint16"),
    "another list": (
        *(olmo, "in.csv.gz", gzip.compress(b"0,4\n5,9\n")),
        "3: do not follow one another",
    ),
    "a list that goes back": (
        *(olmo, "in.csv.gz", gzip.compress(LIST)),
        "3: do not follow one another",
    ),
    "a list that is cut": (olmo, "in.csv.gz", lambda data: data[:-9], "3: in.csv.gz"),
    "a shard that is cut": (
        *(mds, "in.mds", lambda data: data[:-1]),
        "3: samples up to byte",
    ),
    "an array that is cut": (
        *(numpy_file, "in.npy", lambda data: data[:-40]),
        "3: by its header",
    ),
    "no end of documents": (
        *(nano, "in.bin", flat("<u2").replace(b"\2\0", b"")),
        "2: --accept no-end",
    ),
    "a shard that is missing": (
        *(mds, "index.json", lambda data: data.replace(b'"shards": [', OTHER)),
        "2: shard that the index lists",
    ),
    "no index of shards": (mds, "index.json", None, "2: MDS"),
}


@pytest.mark.parametrize("name", WRONG)
def test_files_that_do_not_fit_one_another(name):
    writer, path, becomes, said = WRONG[name]
    code, what = said.split(": ")
    given, file = writer(), pathlib.Path(path)
    if becomes is None:
        file.unlink()
    else:
        data = becomes(file.read_bytes()) if callable(becomes) else becomes
        file.write_bytes(data)
    assert what in pack(given, code=int(code))


def test_options_that_are_missing_or_do_not_go():
    given = nano()
    assert "uint16:50256" in pack(given[:3], code=2)
    assert "uint16:50256" in pack([*given[:4], "uint16"], code=2)
    assert "uint16:70000" in pack([*given[:4], "uint16:70000"], code=2)
    assert "--tokenizer" in pack([*given, "--tokenizer", "x.json"], code=2)
    assert "below 1,000" in pack([*given, "--vocabulary-size", "1000"], code=2)
    assert "leave them out" in pack([*megatron(), "--record", "uint16:2"], code=2)
    assert "ndarray" in pack([*mds(), "--columns", "url"], code=2)
    assert "--input-format megatron" in pack(["in.idx"], code=2)


def test_a_file_without_the_last_id_is_one_document_if_that_is_accepted():
    given = nano()
    pathlib.Path("in.bin").write_bytes(np.arange(5, 405, dtype="<u2").tobytes())
    assert "400 other ids" in pack(given, code=2)
    pack(given, "--accept", "no-end")
    assert packed()[1] == [[*range(5, 405)]]


@pytest.mark.parametrize("shards", [1, 3])
def test_documents_without_tokens_take_no_place(shards, monkeypatch):
    monkeypatch.setattr(f"{__name__}.DOCUMENTS", [[], [5, END], [], [], [7, 9], []])
    pack([*megatron(), "--pack", "none"], "--num-shards", str(shards))
    assert "4 empty documents left out" in run("inspect out").output
    assert packed()[1] == [[5, END], [7, 9]]


def test_documents_that_begin_at_a_cut(monkeypatch):
    monkeypatch.setattr(f"{__name__}.DOCUMENTS", [[5, END]] * 40)
    pack([*nano(), "--pack", "none"], "--num-shards", "8")
    assert packed()[1] == DOCUMENTS


def changed(path):
    """Changes what a file says of the same documents, and not its time."""
    file = pathlib.Path(path)
    data, kept = file.read_bytes(), os.stat(path)
    if path == "in.csv.gz":
        file.write_bytes(gzip.compress(gzip.decompress(data).replace(b"id7,", b"ID7,")))
    elif path == "in.idx":
        megatron(part=4)
    else:
        file.write_bytes(data.replace(b'"url"', b'"URL"'))
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))


@pytest.mark.parametrize(
    ("writer", "beside"),
    [(megatron, "in.idx"), (olmo, "in.csv.gz"), (mds, "index.json")],
)
def test_another_file_beside_the_tokens_makes_another_job(writer, beside):
    given = writer()
    pack(given)
    changed(beside)
    assert f"file {beside} was" in pack(given, code=2)
    pack(given, "--overwrite")
    run("verify out")


def test_a_file_beside_the_tokens_that_changes_while_they_are_packed(monkeypatch):
    given = olmo()
    change = functools.partial(changed, "in.csv.gz")
    at_storage(monkeypatch, "read", "in.csv.gz", change, skip=3)
    assert "written again" in pack(given, "--num-shards", "5", code=1)
    assert not pathlib.Path("out/dataset.json").exists()
