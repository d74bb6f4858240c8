"""Conversions of every format, locally and on Beam."""

import functools

from tests.golden import inputs
from tests.golden.cases import case
from tests.golden.facts import play
from tests.support.records import write_array_records

UNCOMPRESSED = "group_size:1,uncompressed"

# Inputs: each of these functions writes files to the directory `in`.


def files(**made):
    return lambda: inputs.write("in", **{name: make() for name, make in made.items()})


def each(suffix, make, names="01"):
    """Files of the same kind: `make` is given the number of each."""
    numbered = enumerate(names)
    return files(**{f"{c}__{suffix}": functools.partial(make, n) for n, c in numbered})


def tfrecords(*counts):
    """TFRecord files of so many records each."""

    def make(number):
        return inputs.tfrecord(inputs.records(counts[number], seed=number))

    return each("tfrecord", make, "abcdef"[: len(counts)])


def table(count=40, *, seed=0, delimiter=","):
    """A table with all that CSV quotes."""
    cells = ["", "plain", "a,b\tc", 'He said: "no"', "two\nlines", "é\u2028", " blank "]
    rows = inputs.rows(count, seed=seed)
    for number, row in enumerate(rows):
        row["text"] = cells[number % len(cells)]
        row["zip"] = f"{number:05d}"
    return inputs.table(rows, delimiter=delimiter)


def lines():
    kept = inputs.texts(90)
    kept[4::9] = [""] * len(kept[4::9])
    last = inputs.lines(kept[:20], newline="\r\n")[:-2]
    inputs.write("in", a__txt=inputs.lines(kept), b__txt=last)


def parquet_rows(count):
    """Returns rows with lists, objects and nulls."""
    return [
        row
        | {
            "tags": ["a", "b"][: n % 3],
            "meta": {"lang": "de", "n": n},
            "maybe": None if n % 4 == 1 else f"m{n}",
        }
        for n, row in enumerate(inputs.rows(count))
    ]


def parquet(*counts):
    """Parquet files of so many rows, in groups of so many."""

    def write():
        data = inputs.write("in")
        for name, (count, group) in zip("ab", counts, strict=False):
            path = data / f"{name}.parquet"
            inputs.parquet(path, parquet_rows(count), group_rows=group)

    return write


def frames_in_records():
    inner = [inputs.tfrecord(inputs.records(n % 7, seed=n)) for n in range(40)]
    inputs.write("in", a__tfrecord=inputs.tfrecord(inner))


def arrayrecords():
    data = inputs.write("in")
    for name, count in (("a", 40), ("b", 51)):
        kept = inputs.records(count, seed=count, words=1200)
        write_array_records(data / f"{name}.array_record", kept, options=UNCOMPRESSED)


def jsonl(count=40, **options):
    return inputs.jsonl(inputs.rows(count, **options))


# What is converted once: files, options, and records of which the places are kept.
TEXT, CSV = "--input-format text", "--input-format csv"
THREE = tfrecords(30, 80, 11)
ONCE = {
    "tfrecord_seven_shards": (THREE, "--num-shards 7", "0 29 30 75 110 120"),
    "tfrecord_by_size": (tfrecords(50, 1, 90), "--shard-size 2KiB", "50 51 140"),
    "tfrecord_frames_in_records": (
        *(frames_in_records, "--num-shards 33 --whole-files", "0 20 39"),
    ),
    "arrayrecord_files": (arrayrecords, "--num-shards 5", "0 39 40 90"),
    "jsonl_examples": (
        each("jsonl", lambda n: jsonl(seed=n)),
        *("--num-shards 7", "0 39 40 79"),
    ),
    "csv_examples": (
        each("csv", lambda n: table(seed=n)),
        *(f"{CSV} --match-shards", "0 4 39 40 79"),
    ),
    "tsv_examples": (
        files(a__tsv=lambda: table(50, delimiter="\t")),
        *("--input-format tsv --num-shards 1", "0 4 49"),
    ),
    "text_lines": (lines, f"{TEXT} --num-shards 7", "0 4 50 90 109"),
    "parquet_examples": (
        parquet((50, 20), (30, 1 << 20)),
        *("--match-shards", "0 21 49 50 79"),
    ),
    "webdataset_examples": (
        each("tar", lambda n: inputs.samples(20, seed=n)),
        *("--match-shards", "0 19 20 39"),
    ),
    "beam_tfrecord": (
        *(THREE, "--num-shards 7 --runner FnApiRunner", "0 29 30 75 110 120"),
    ),
    "mapped": (
        tfrecords(40, 25),
        "--num-shards 4 --map tests.golden.functions:thin",
        "",
    ),
}


def once(write, options, at):
    write()
    return play(f"convert in out {options}\n-> dataset out {at}")


for _name, _given in ONCE.items():
    case(lambda given=_given: once(*given), _name)


@case
def tfrecord_match_shards():
    tfrecords(5, 1, 40, 17)()
    return play("""
        convert in/b.tfrecord in/[acd].* out --match-shards
        -> dataset out 4 5 6 46""")


@case
def group_size():
    tfrecords(70, 33)()
    return play("""
        convert in out --num-shards 3 --group-size 16
        -> dataset out 0 16 69 70 102
        -> chunks: chunks out""")


@case
def two_splits():
    tfrecords(40, 25)()
    return play("""
        convert in/a.tfrecord out --num-shards 2 --split train --name both
        convert in/b.tfrecord out --num-shards 2 --split test --name both
        -> splits out""")
