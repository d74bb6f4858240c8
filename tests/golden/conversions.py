"""Conversions of every format, locally, on Beam, and in a bucket."""

import functools

from tests.golden import facts, inputs
from tests.golden.cases import case


def _made(source, out, options="", at=()):
    """Converts, and returns the facts of the dataset, with the places of records."""
    facts.convert(source, out, *options.split())
    return _found(out, at)


def _found(out, at=()):
    found = facts.of_dataset(out)
    return found | ({"places": facts.places(out, at)} if at else {})


def _splits(out):
    return {split: facts.of_dataset(out, split) for split in ("train", "test")}


# Inputs: each of these functions writes files to a folder, and returns it.


def _files(**files):
    def write(folder):
        return inputs.write(folder / "in", **{n: make() for n, make in files.items()})

    return write


def _each(suffix, make, names="01"):
    """Files of the same kind: `make` is given the number of each."""
    numbered = enumerate(names)
    return _files(**{f"{c}__{suffix}": functools.partial(make, n) for n, c in numbered})


def _tfrecords(*counts):
    """TFRecord files of so many records each."""

    def make(number):
        return inputs.tfrecord(inputs.records(counts[number], seed=number))

    return _each("tfrecord", make, "abcdef"[: len(counts)])


def _table(count, *, seed=0, delimiter=","):
    """A table with all that CSV quotes."""
    cells = ["", "plain", "a,b\tc", 'He said: "no"', "two\nlines", "é\u2028", " blank "]
    rows = inputs.rows(count, seed=seed)
    for number, row in enumerate(rows):
        row["text"] = cells[number % len(cells)]
        row["zip"] = f"{number:05d}"
    return inputs.table(rows, delimiter=delimiter)


def _lines(folder):
    kept = inputs.texts(90)
    kept[4::9] = [""] * len(kept[4::9])
    last = inputs.lines(kept[:20], newline="\r\n")[:-2]
    return inputs.write(folder / "in", a__txt=inputs.lines(kept), b__txt=last)


def _parquet_rows(count):
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


def _parquet(*files):
    """Parquet files of so many rows, in groups of so many."""

    def write(folder):
        data = inputs.write(folder / "in")
        for name, (count, group) in zip("ab", files, strict=False):
            rows = _parquet_rows(count)
            inputs.parquet(data / f"{name}.parquet", rows, group_rows=group)
        return data

    return write


def _arrayrecords(folder):
    data = inputs.write(folder / "in")
    for name, count in {"a": 40, "b": 51}.items():
        kept = inputs.records(count, seed=count, words=1200)
        inputs.array_record(data / f"{name}.array_record", kept)
    return data


def _jsonl(count=40, **options):
    return inputs.jsonl(inputs.rows(count, **options))


# What is converted once: files, options, and records of which the places are kept.
TEXT = "--input-format text"
THREE = _tfrecords(30, 80, 11)
ONCE = {
    "tfrecord_one_shard": (_tfrecords(60), "--num-shards 1", [0, 3, 31, 59]),
    "tfrecord_seven_shards": (THREE, "--num-shards 7", [0, 29, 30, 75, 110, 120]),
    "tfrecord_33_shards": (_tfrecords(30, 50), "--num-shards 33", []),
    "tfrecord_by_size": (_tfrecords(50, 1, 90), "--shard-size 2KiB", [50, 51, 140]),
    "tfrecord_gzip_cut": (
        _files(a__gz=lambda: inputs.stored_gzip(inputs.tfrecord(inputs.records(150)))),
        *("--num-shards 5", [0, 60, 149]),
    ),
    "tfrecord_large_records": (
        _files(
            a__tfrecord=lambda: inputs.tfrecord(
                bytes([n]) * (n * 70_000 + 1) for n in range(5)
            )
        ),
        *("--num-shards 3", [4]),
    ),
    "arrayrecord_files": (_arrayrecords, "--num-shards 5", [0, 39, 40, 90]),
    "jsonl_examples": (
        _each("jsonl", lambda n: _jsonl(seed=n)),
        *("--num-shards 7", [0, 39, 40, 79]),
    ),
    "jsonl_gzip_cut": (
        _files(a__jsonl__gz=lambda: inputs.stored_gzip(_jsonl(150))),
        *("--num-shards 5", [0, 60, 149]),
    ),
    "csv_examples": (
        _each("csv", lambda n: _table(40, seed=n)),
        *("--input-format csv --match-shards", [0, 4, 39, 40, 79]),
    ),
    "csv_cut": (
        _files(a__csv=lambda: inputs.table(inputs.rows(60))),
        *("--num-shards 4", [0, 31, 59]),
    ),
    "tsv_examples": (
        _files(a__tsv=lambda: _table(50, delimiter="\t")),
        *("--input-format tsv --num-shards 1", [0, 4, 49]),
    ),
    "text_lines": (_lines, f"{TEXT} --num-shards 7", [0, 4, 50, 90, 109]),
    "parquet_examples": (
        _parquet((50, 20), (30, 1 << 20)),
        *("--match-shards", [0, 21, 49, 50, 79]),
    ),
    "parquet_cut": (_parquet((60, 20)), "--num-shards 5", [0, 31, 59]),
    "webdataset_examples": (
        _each("tar", lambda n: inputs.samples(20, seed=n)),
        *("--match-shards", [0, 19, 20, 39]),
    ),
    "webdataset_cut": (
        _files(a__tar=lambda: inputs.samples(40)),
        *("--num-shards 3", [0, 20, 39]),
    ),
}


def _once(folder, write, options, at):
    return _made(write(folder), folder / "out", options, at)


# Files that give the same records by every codec.
COMPRESSED = {
    "tfrecord_compressed": (
        "tfrecord",
        lambda seed: inputs.tfrecord(inputs.records(30, seed=seed)),
        "",
    ),
    "jsonl_compressed": ("jsonl", lambda seed: _jsonl(30, seed=seed), ""),
    "csv_compressed": ("csv", lambda seed: _table(30, seed=seed), "--input-format csv"),
    "text_compressed": (
        "txt",
        lambda seed: inputs.lines(inputs.texts(30, seed=seed)),
        TEXT,
    ),
    "webdataset_compressed": ("tar", lambda seed: inputs.samples(25, seed=seed), ""),
}


def _compressed(folder, suffix, make, options):
    found = {}
    for codec, compress in inputs.COMPRESS.items():
        data = {f"{name}__{suffix}": compress(make(ord(name))) for name in "ab"}
        source, out = inputs.write(folder / codec, **data), folder / f"out-{codec}"
        found[codec] = _made(source, out, f"--match-shards {options}", [0, 7, 40])
    return facts.alike(found)


# Files that are converted with several options.
KINDS = {
    "jsonl_kinds_of_records": (
        *(_files(a__jsonl=lambda: _jsonl(30)), "--num-shards 2", [17]),
        {
            "line": "--record line",
            "column": "--record column:text",
            "some": "--columns text,score",
            "typed": "--columns *,id:float",
        },
    ),
    "csv_kinds_of_records": (
        *(_files(a__csv=lambda: _table(30)), "--num-shards 1 --input-format csv", [17]),
        {
            "line": "--record line",
            "column": "--record column:text",
            "typed": "--columns score:string,id:float,text",
        },
    ),
    "parquet_kinds_of_records": (
        *(_parquet((40, 15)), "--num-shards 1", []),
        {
            "column": "--record column:text",
            "some": "--columns id,tags",
            "typed": "--columns *,score:float",
            "nulls": "--columns id,maybe --nulls skip",
            "column_nulls": "--record column:maybe --nulls skip",
        },
    ),
    "webdataset_kinds_of_records": (
        *(_files(a__tar=lambda: inputs.samples(30)), "--num-shards 2", [17]),
        {"column": "--record column:txt", "some": "--columns __key__,cls"},
    ),
    "mapped": (
        *(_tfrecords(40, 25), "--num-shards 4", []),
        {
            name: f"--map tests.golden.functions:{name}"
            for name in ("upper", "thin", "words")
        },
    ),
}


def _kinds(folder, write, options, at, kinds):
    data = write(folder)
    return {
        name: _made(data, folder / name, f"{options} {more}", at)
        for name, more in kinds.items()
    }


for _table_of, _run in ((ONCE, _once), (COMPRESSED, _compressed), (KINDS, _kinds)):
    for _name, _given in _table_of.items():
        case(lambda folder, run=_run, given=_given: run(folder, *given), _name)


# Others


@case
def tfrecord_match_shards(folder):
    data = _tfrecords(5, 1, 40, 17)(folder)
    patterns = (data / "b.tfrecord", data / "[acd].*")
    facts.convert(*patterns, folder / "out", "--match-shards")
    return _found(folder / "out", [4, 5, 6, 46])


@case
def tfrecord_frames_in_records(folder):
    """Records that hold frames themselves, cut at every kind of byte."""
    inner = [inputs.tfrecord(inputs.records(n % 7, seed=n)) for n in range(40)]
    data = inputs.write(folder / "in", a__tfrecord=inputs.tfrecord(inner))
    options = "--num-shards 33"
    assert facts.tried("convert", data, folder / "out", *options.split()).code
    options += " --whole-files --overwrite"
    return _made(data, folder / "out", options, [0, 20, 39])


@case
def tfrecord_two_workers(folder):
    data = THREE(folder)
    facts.convert(data, folder / "out", "--num-shards", 7, workers=2)
    return _found(folder / "out", [0, 29, 30, 75, 110, 120])


def _skipped(source, out, shards):
    """Returns the exit code of a conversion, and does it again without the damage."""
    argv = ("convert", source, out, "--num-shards", shards, "--workers", 1)
    refused = facts.tried(*argv).code
    facts.command(*argv, "--on-corrupt", "skip")
    return {"refused": refused}


@case
def tfrecord_damaged(folder):
    """Which records are left out, where a payload, a header and an end are damaged."""
    kept = inputs.records(60, words=8)
    data = bytearray(inputs.tfrecord(kept))
    data[len(inputs.tfrecord(kept[:10])) + 12] ^= 1
    data[len(inputs.tfrecord(kept[:30]))] ^= 1
    source = inputs.write(folder / "in", a__tfrecord=bytes(data[:-3]))
    refused = _skipped(source, out := folder / "out", 1)
    held = set(facts.shards_of(facts.loader.open(out))[0])
    lost = [number for number, item in enumerate(kept) if item not in held]
    return _found(out, [9, 10, 40]) | refused | {"lost": lost}


@case
def jsonl_damaged(folder):
    text = _jsonl().split(b"\n")
    text[11] = text[11][:-1]
    text[25] = text[25].replace(b":", b"")
    source = inputs.write(folder / "in", a__jsonl=b"\n".join(text))
    refused = _skipped(source, folder / "out", 2)
    return _found(folder / "out", [10, 11, 37]) | refused


@case
def group_size(folder):
    data, options = _tfrecords(70, 33)(folder), "--num-shards 3 --group-size 16"
    found = _made(data, folder / "out", options, [0, 16, 69, 70, 102])
    return found | {"chunks": facts.chunks_of(folder / "out")}


@case
def compressions(folder):
    """All give the same records; only one stores them as they are."""
    long = b"ash " * 100
    kept = inputs.tfrecord([*inputs.records(70), long])
    data = inputs.write(folder / "in", a__tfrecord=kept)
    found, plain = {}, []
    for codec in ("zstd:1", "zstd:19", "brotli:4", "snappy", "uncompressed"):
        for group in (1, 4):
            out = folder / f"{codec.replace(':', '')}-{group}"
            options = f"--num-shards 2 --group-size {group} --compression {codec}"
            found[out.name] = _made(data, out, options, [69])
            if any(long in path.read_bytes() for path in out.glob("*array_record*")):
                plain.append(out.name)
    return facts.alike(found) | {"plain": plain}


@case
def arrayrecord_files_in_groups(folder):
    data = inputs.write(folder / "in")
    for n in range(2):
        kept = inputs.records(45, seed=n, words=1200)
        inputs.array_record(data / f"{n}.array_record", kept, group_size=10)
    options = "--num-shards 4 --group-size"
    found = {n: _made(data, folder / f"{n}", f"{options} {n}") for n in (1, 10, 16)}
    return facts.alike(found)


@case
def tfds_directory(folder):
    """Both splits of a directory of TFDS, and one of them alone."""
    data = inputs.tfds(folder / "in", train=[20, 35], test=[8])
    facts.convert(data, folder / "out", "--match-shards")
    return {
        **_splits(folder / "out"),
        "places": facts.places(folder / "out", [0, 19, 20, 54], "train"),
        "some": _made(data, folder / "some", "--split train --num-shards 3"),
    }


@case
def hugging_face_directory(folder):
    data = inputs.write(folder / "in" / "data")
    for name, rows in {
        "train-00000-of-00002": inputs.rows(30),
        "train-00001-of-00002": inputs.rows(25, seed=1),
        "test-00000-of-00001": inputs.rows(9, seed=2),
    }.items():
        inputs.parquet(data / f"{name}.parquet", rows)
    facts.convert(folder / "in", folder / "out", "--match-shards")
    places = facts.places(folder / "out", [29, 30], "train")
    return {**_splits(folder / "out"), "places": places}


@case
def jsonl_nested(folder):
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
    data = inputs.write(folder / "in", a__jsonl=inputs.jsonl(items))
    column = "--num-shards 1 --record column:meta.lang"
    return {
        "examples": _made(data, folder / "out", "--num-shards 3", [39]),
        "features": sorted(facts.loader.open(folder / "out").features or ()),
        "column": _made(data, folder / "lang", column),
    }


@case
def jsonl_ends_of_lines(folder):
    """Blank lines, CR LF, a mark of the byte order, and no end of the last line."""
    rows = inputs.rows(20)
    text = inputs.jsonl(rows[:8], newline="\r\n") + b"\n  \n" + inputs.jsonl(rows[8:])
    data = inputs.write(folder / "in", a__jsonl=b"\xef\xbb\xbf" + text[:-1])
    options = "--num-shards 3 --record"
    return {
        kind: _made(data, folder / kind, f"{options} {kind}", [8, 19])
        for kind in ("example", "line")
    }


@case
def jsonl_nulls(folder):
    rows = inputs.rows(40)
    for row in rows[::6]:
        row["text"] = None
    data = inputs.write(folder / "in", a__jsonl=inputs.jsonl(rows))
    skip = "--nulls skip --num-shards 3"
    return {
        "kept": _made(data, folder / "kept", "--num-shards 3", [6]),
        "skipped": _made(data, folder / "skipped", skip),
        "column": _made(data, folder / "column", f"{skip} --record column:text"),
    }


@case
def two_splits(folder):
    data = _tfrecords(40, 25)(folder)
    for split, file in {"train": "a", "test": "b"}.items():
        options = f"--num-shards 2 --split {split} --name both"
        facts.convert(data / f"{file}.tfrecord", folder / "out", *options.split())
    return _splits(folder / "out")


# On Beam, and in buckets


def _of_formats(folder):
    """Writes a file of each format but TFRecord."""
    data = inputs.write(
        folder / "in",
        a__jsonl=_jsonl(),
        b__csv=inputs.table(inputs.rows(40)),
        c__tar=inputs.samples(20),
        d__gz=inputs.stored_gzip(inputs.tfrecord(inputs.records(50))),
        e__txt=inputs.lines(inputs.texts(40)),
    )
    inputs.parquet(data / "f.parquet", _parquet_rows(30), group_rows=20)
    inputs.array_record(data / "g.array_record", inputs.records(40, words=1200))
    return sorted(data.iterdir())


def _on_beam(source, out, options, at=()):
    beam = f"{options} --runner FnApiRunner"
    facts.command("convert", source, out, *beam.split())
    return _found(out, at)


@case
def beam_tfrecord(folder):
    at = [0, 29, 30, 75, 110, 120]
    return _on_beam(THREE(folder), folder / "out", "--num-shards 7", at)


@case
def beam_jsonl_in_groups(folder):
    data = inputs.write(folder / "in", a__jsonl=_jsonl(70))
    return _on_beam(data, folder / "out", "--num-shards 3 --group-size 16", [0, 69])


def _alike(folder, there):
    """Converts each file here and there, which gives the same."""
    found = {}
    for path in _of_formats(folder):
        here = _made(path, folder / path.stem, "--num-shards 2", [17])
        found[path.name] = facts.alike({"here": here, "there": there(path)})
    return found


@case
def beam_formats(folder):
    return _alike(
        folder,
        lambda path: _on_beam(path, f"{folder}/{path.stem}-b", "--num-shards 2", [17]),
    )


@case
def beam_convert_files(folder):
    """`ConvertFiles` in a pipeline, of two splits."""
    import apache_beam as beam

    from gristmill import transforms

    data = _tfrecords(30, 44)(folder)
    jobs = tuple(
        transforms.ConversionJob(
            inputs=(str(data / f"{file}.tfrecord"),),
            output=str(folder / "out"),
            name="both",
            split=split,
            plan=transforms.PlanOptions(kind="num_shards", value=3),
        )
        for split, file in {"train": "a", "test": "b"}.items()
    )
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = pipeline | transforms.ConvertFiles(jobs=jobs)
    return _splits(folder / "out")


@case
def bucket_tfrecord(folder):
    data = _tfrecords(30, 80)(folder)
    with facts.bucket(folder) as server:
        for path in sorted(data.iterdir()):
            server.objects.put("bucket", f"in/{path.name}", path.read_bytes())
        found = {
            out: _made(source, out, "--num-shards 3", [0, 30, 109])
            for source, out in (
                ("gs://bucket/in/*", "gs://bucket/out"),
                ("gs://bucket/in/*", folder / "from"),
                (data, "gs://bucket/to"),
            )
        }
    return facts.alike(found)


@case
def bucket_formats(folder):
    def there(path):
        server.objects.put("bucket", f"in/{path.name}", path.read_bytes())
        source, out = f"gs://bucket/in/{path.name}", f"gs://bucket/{path.stem}"
        return _made(source, out, "--num-shards 2", [17])

    with facts.bucket(folder) as server:
        return _alike(folder, there)


@case
def bucket_beam(folder):
    with facts.bucket(folder) as server:
        server.objects.put("bucket", "in/a.jsonl", _jsonl())
        source, out = "gs://bucket/in/a.jsonl", "gs://bucket/out"
        return _on_beam(source, out, "--num-shards 3", [0, 39])
