"""Conversions of every format, locally, on Beam, and in a bucket."""

import functools
import pathlib

from gristmill import loader
from tests.golden import facts, inputs
from tests.golden.cases import case
from tests.golden.facts import play

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


def arrayrecords(name, count, *, seed, group_size=1):
    kept = inputs.records(count, seed=seed, words=1200)
    path = inputs.write("in") / f"{name}.array_record"
    inputs.array_record(path, kept, group_size=group_size)


def jsonl(count=40, **options):
    return inputs.jsonl(inputs.rows(count, **options))


def zipped(suffix, make):
    return files(**{f"a__{suffix}": lambda: inputs.stored_gzip(make())})


def records():
    return inputs.tfrecord(inputs.records(150))


def large():
    return inputs.tfrecord(bytes([n]) * (n * 70_000 + 1) for n in range(5))


def two_arrayrecords():
    arrayrecords("a", 40, seed=40)
    arrayrecords("b", 51, seed=51)


# What is converted once: files, options, and records of which the places are kept.
TEXT, CSV = "--input-format text", "--input-format csv"
THREE = tfrecords(30, 80, 11)
ONCE = {
    "tfrecord_one_shard": (tfrecords(60), "--num-shards 1", "0 3 31 59"),
    "tfrecord_seven_shards": (THREE, "--num-shards 7", "0 29 30 75 110 120"),
    "tfrecord_two_workers": (THREE, "--num-shards 7 --workers 2", "0 29 30 75 110 120"),
    "tfrecord_33_shards": (tfrecords(30, 50), "--num-shards 33", ""),
    "tfrecord_by_size": (tfrecords(50, 1, 90), "--shard-size 2KiB", "50 51 140"),
    "tfrecord_gzip_cut": (zipped("gz", records), "--num-shards 5", "0 60 149"),
    "tfrecord_large_records": (files(a__tfrecord=large), "--num-shards 3", "4"),
    "arrayrecord_files": (two_arrayrecords, "--num-shards 5", "0 39 40 90"),
    "jsonl_examples": (
        each("jsonl", lambda n: jsonl(seed=n)),
        *("--num-shards 7", "0 39 40 79"),
    ),
    "jsonl_gzip_cut": (
        zipped("jsonl__gz", lambda: jsonl(150)),
        *("--num-shards 5", "0 60 149"),
    ),
    "csv_examples": (
        each("csv", lambda n: table(seed=n)),
        *(f"{CSV} --match-shards", "0 4 39 40 79"),
    ),
    "csv_cut": (
        files(a__csv=lambda: inputs.table(inputs.rows(60))),
        *("--num-shards 4", "0 31 59"),
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
    "parquet_cut": (parquet((60, 20)), "--num-shards 5", "0 31 59"),
    "webdataset_examples": (
        each("tar", lambda n: inputs.samples(20, seed=n)),
        *("--match-shards", "0 19 20 39"),
    ),
    "webdataset_cut": (
        files(a__tar=lambda: inputs.samples(40)),
        *("--num-shards 3", "0 20 39"),
    ),
    "beam_tfrecord": (
        *(THREE, "--num-shards 7 --runner FnApiRunner", "0 29 30 75 110 120"),
    ),
    "beam_jsonl_in_groups": (
        files(a__jsonl=lambda: jsonl(70)),
        *("--num-shards 3 --group-size 16 --runner FnApiRunner", "0 69"),
    ),
}


def once(write, options, at):
    write()
    return play(f"convert in out {options}\n-> dataset out {at}")


# Files that give the same records by every codec.
COMPRESSED = {
    "tfrecord_compressed": (
        "tfrecord",
        lambda seed: inputs.tfrecord(inputs.records(30, seed=seed)),
        "",
    ),
    "jsonl_compressed": ("jsonl", lambda seed: jsonl(30, seed=seed), ""),
    "csv_compressed": ("csv", lambda seed: table(30, seed=seed), CSV),
    "text_compressed": (
        "txt",
        lambda seed: inputs.lines(inputs.texts(30, seed=seed)),
        TEXT,
    ),
    "webdataset_compressed": ("tar", lambda seed: inputs.samples(25, seed=seed), ""),
}


def compressed(suffix, make, options):
    script = ""
    for codec, compress in inputs.COMPRESS.items():
        data = {f"{name}__{suffix}": compress(make(ord(name))) for name in "ab"}
        inputs.write(codec, **data)
        script += f"convert {codec} out-{codec} --match-shards {options}\n"
        script += f"-> dataset out-{codec} 0 7 40\n"
    return play(script)


# Files that are converted with several options.
KINDS = {
    "jsonl_kinds_of_records": (
        *(files(a__jsonl=lambda: jsonl(30)), "--num-shards 2", "17"),
        {
            "line": "--record line",
            "column": "--record column:text",
            "some": "--columns text,score",
            "typed": "--columns *,id:float",
        },
    ),
    "csv_kinds_of_records": (
        *(files(a__csv=lambda: table(30)), f"--num-shards 1 {CSV}", "17"),
        {
            "line": "--record line",
            "column": "--record column:text",
            "typed": "--columns score:string,id:float,text",
        },
    ),
    "parquet_kinds_of_records": (
        *(parquet((40, 15)), "--num-shards 1", ""),
        {
            "column": "--record column:text",
            "some": "--columns id,tags",
            "typed": "--columns *,score:float",
            "nulls": "--columns id,maybe --nulls skip",
            "column_nulls": "--record column:maybe --nulls skip",
        },
    ),
    "webdataset_kinds_of_records": (
        *(files(a__tar=lambda: inputs.samples(30)), "--num-shards 2", "17"),
        {"column": "--record column:txt", "some": "--columns __key__,cls"},
    ),
    "mapped": (
        *(tfrecords(40, 25), "--num-shards 4", ""),
        {
            name: f"--map tests.golden.functions:{name}"
            for name in ("upper", "thin", "words")
        },
    ),
}


def kinds(write, options, at, given):
    write()
    return play(
        "\n".join(
            f"convert in {name} {options} {more}\n-> {name}: dataset {name} {at}"
            for name, more in given.items()
        )
    )


for _table, _run in ((ONCE, once), (COMPRESSED, compressed), (KINDS, kinds)):
    for _name, _given in _table.items():
        case(lambda run=_run, given=_given: run(*given), _name)


# Others


@case
def tfrecord_match_shards():
    tfrecords(5, 1, 40, 17)()
    return play("""
        convert in/b.tfrecord in/[acd].* out --match-shards
        -> dataset out 4 5 6 46""")


@case
def tfrecord_frames_in_records():
    """Records that hold frames themselves, cut at every kind of byte."""
    inner = [inputs.tfrecord(inputs.records(n % 7, seed=n)) for n in range(40)]
    inputs.write("in", a__tfrecord=inputs.tfrecord(inner))
    assert facts.tried("convert", "in", "out", "--num-shards", 33).code
    return play("""
        convert in out --num-shards 33 --whole-files --overwrite
        -> dataset out 0 20 39""")


SKIPPED = """
    -> refused: refused convert in out --num-shards {0}
    convert in out --num-shards {0} --on-corrupt skip
    -> dataset out {1}"""


@case
def tfrecord_damaged():
    """Which records are left out, where a payload, a header and an end are damaged."""
    kept = inputs.records(60, words=8)
    data = bytearray(inputs.tfrecord(kept))
    data[len(inputs.tfrecord(kept[:10])) + 12] ^= 1
    data[len(inputs.tfrecord(kept[:30]))] ^= 1
    inputs.write("in", a__tfrecord=bytes(data[:-3]))
    found = play(SKIPPED.format(1, "9 10 40"))
    held = {*next(facts.shards_of(loader.open("out")))}
    return found | {"lost": [n for n, item in enumerate(kept) if item not in held]}


@case
def jsonl_damaged():
    text = jsonl().split(b"\n")
    text[11] = text[11][:-1]
    text[25] = text[25].replace(b":", b"")
    inputs.write("in", a__jsonl=b"\n".join(text))
    return play(SKIPPED.format(2, "10 11 37"))


@case
def group_size():
    tfrecords(70, 33)()
    return play("""
        convert in out --num-shards 3 --group-size 16
        -> dataset out 0 16 69 70 102
        -> chunks: chunks out""")


@case
def compressions():
    """All give the same records; only one stores them as they are."""
    long = b"ash " * 100
    inputs.write("in", a__tfrecord=inputs.tfrecord([*inputs.records(70), long]))
    script, plain = "", []
    for codec in ("zstd:1", "zstd:19", "brotli:4", "snappy", "uncompressed"):
        for group in (1, 4):
            out = f"{codec.replace(':', '')}-{group}"
            options = f"--num-shards 2 --group-size {group} --compression {codec}"
            script += f"convert in {out} {options}\n-> dataset {out} 69\n"
    found = play(script)
    for path in sorted(pathlib.Path().glob("*/*array_record-*")):
        if long in path.read_bytes():
            plain.append(path.parent.name)
    return found | {"plain": sorted({*plain})}


@case
def arrayrecord_files_in_groups():
    for n in range(2):
        arrayrecords(n, 45, seed=n, group_size=10)
    return play(
        "\n".join(
            f"convert in out{n} --num-shards 4 --group-size {n}\n-> dataset out{n}"
            for n in (1, 10, 16)
        )
    )


@case
def tfds_directory():
    """Both splits of a directory of TFDS, and one of them alone."""
    inputs.tfds("in", train=[20, 35], test=[8])
    return play("""
        convert in out --match-shards
        -> splits out
        -> places: places out 0 19 20 54
        convert in some --split train --num-shards 3
        -> some: dataset some""")


@case
def hugging_face_directory():
    data = inputs.write("in/data")
    for name, rows in {
        "train-00000-of-00002": inputs.rows(30),
        "train-00001-of-00002": inputs.rows(25, seed=1),
        "test-00000-of-00001": inputs.rows(9, seed=2),
    }.items():
        inputs.parquet(data / f"{name}.parquet", rows)
    return play("""
        convert in out --match-shards
        -> splits out
        -> places: places out 29 30""")


@case
def jsonl_nested():
    items = [
        {
            "meta": {"lang": "de" if n % 2 else "en", "at": {"x": n, "y": n / 2}},
            "tokens": list(range(n % 4)),
            "tags": ["a", "b" * n][: n % 3],
            "url": None if n % 5 == 2 else f"http://x/{n}",
            **({"extra": n} if n % 7 == 0 else {}),
        }
        for n in range(40)
    ]
    inputs.write("in", a__jsonl=inputs.jsonl(items))
    found = play("""
        convert in out --num-shards 3
        -> examples: dataset out 39
        convert in lang --num-shards 1 --record column:meta.lang
        -> column: dataset lang""")
    return found | {"features": sorted(loader.open("out").features)}


@case
def jsonl_ends_of_lines():
    """Blank lines, CR LF, a mark of the byte order, and no end of the last line."""
    rows = inputs.rows(20)
    text = inputs.jsonl(rows[:8], newline="\r\n") + b"\n  \n" + inputs.jsonl(rows[8:])
    inputs.write("in", a__jsonl=b"\xef\xbb\xbf" + text[:-1])
    return play("""
        convert in example --num-shards 3 --record example
        -> example: dataset example 8 19
        convert in line --num-shards 3 --record line
        -> line: dataset line 8 19""")


@case
def jsonl_nulls():
    rows = inputs.rows(40)
    for row in rows[::6]:
        row["text"] = None
    inputs.write("in", a__jsonl=inputs.jsonl(rows))
    return play("""
        convert in kept --num-shards 3
        -> kept: dataset kept 6
        convert in skipped --nulls skip --num-shards 3
        -> skipped: dataset skipped
        convert in column --nulls skip --num-shards 3 --record column:text
        -> column: dataset column""")


@case
def two_splits():
    tfrecords(40, 25)()
    return play("""
        convert in/a.tfrecord out --num-shards 2 --split train --name both
        convert in/b.tfrecord out --num-shards 2 --split test --name both
        -> splits out""")


# On Beam, and in buckets


def upload(server):
    for path in pathlib.Path("in").iterdir():
        server.objects.put("bucket", f"in/{path.name}", path.read_bytes())


def of_formats(there, server=None):
    """Converts a file of each format but TFRecord, here and there: the same."""
    inputs.write(
        "in",
        a__jsonl=jsonl(),
        b__csv=inputs.table(inputs.rows(40)),
        c__tar=inputs.samples(20),
        d__gz=inputs.stored_gzip(inputs.tfrecord(inputs.records(50))),
        e__txt=inputs.lines(inputs.texts(40)),
    )
    inputs.parquet("in/f.parquet", parquet_rows(30), group_rows=20)
    arrayrecords("g", 40, seed=0)
    if server is not None:
        upload(server)
    script = ""
    for path in pathlib.Path("in").iterdir():
        for given in ("in/{0} here-{0}", there):
            source, out, *options = given.format(path.name).split()
            script += f"convert {source} {out} --num-shards 2 {' '.join(options)}\n"
            script += f"-> {path.name}: dataset {out} 17\n"
    return play(script)


@case
def beam_formats():
    return of_formats("in/{0} beam-{0} --runner FnApiRunner")


@case
def beam_convert_files():
    """`ConvertFiles` in a pipeline, of two splits."""
    import apache_beam as beam

    from gristmill import transforms

    tfrecords(30, 44)()
    plan = transforms.PlanOptions(kind="num_shards", value=3)
    jobs = [
        transforms.ConversionJob(
            inputs=(f"in/{file}.tfrecord",),
            **{"output": "out", "name": "both", "split": split, "plan": plan},
        )
        for split, file in {"train": "a", "test": "b"}.items()
    ]
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = pipeline | transforms.ConvertFiles(jobs=tuple(jobs))
    return play("-> splits out")


@case
def bucket_tfrecord():
    tfrecords(30, 80)()
    with facts.bucket() as server:
        upload(server)
        return play(
            "\n".join(
                f"convert {source} {out} --num-shards 3\n-> dataset {out} 0 30 109"
                for source, out in (
                    ("gs://bucket/in/*", "gs://bucket/out"),
                    ("gs://bucket/in/*", "from"),
                    ("in", "gs://bucket/to"),
                )
            )
        )


@case
def bucket_formats():
    with facts.bucket() as server:
        return of_formats("gs://bucket/in/{0} gs://bucket/{0}", server)


@case
def bucket_beam():
    with facts.bucket() as server:
        server.objects.put("bucket", "in/a.jsonl", jsonl())
        return play("""
            convert gs://bucket/in/a.jsonl gs://bucket/out --num-shards 3 \
                --runner FnApiRunner
            -> dataset gs://bucket/out 0 39""")
