"""Conversions of every format, locally, on Beam, and in a bucket."""

import pathlib
from collections.abc import Iterable
from typing import Any

from tests.golden import facts, inputs
from tests.golden.cases import case

CODECS = ("gzip", "zlib", "zstd")  # Beside none.


def _made(
    source: object, out: facts.Path, *options: object, at: Iterable[int] = ()
) -> dict[str, Any]:
    """Converts, and returns the facts of the dataset, with the places of records."""
    facts.convert(source, out, *options)
    return _found(out, at)


def _found(out: facts.Path, at: Iterable[int] = ()) -> dict[str, Any]:
    found = facts.of_dataset(out)
    return found | ({"places": facts.places(out, at)} if at else {})


def _compressed(
    folder: pathlib.Path, suffix: str, files: dict[str, bytes], *options: object
) -> dict[str, Any]:
    """Returns the facts of files that give the same records by every codec."""
    found = {}
    for codec in ("none", *CODECS):
        data = {f"{n}__{suffix}": inputs.COMPRESS[codec](files[n]) for n in files}
        source = inputs.write(folder / codec, **data)
        chosen = ("--match-shards", *options)
        found[codec] = _made(source, folder / f"out-{codec}", *chosen, at=[0, 7, 40])
    return facts.alike(found)


def _tfrecords(folder: pathlib.Path, *counts: int) -> pathlib.Path:
    """Writes TFRecord files of so many records each."""
    files = {
        f"{'abcdef'[n]}__tfrecord": inputs.tfrecord(inputs.records(count, seed=n))
        for n, count in enumerate(counts)
    }
    return inputs.write(folder / "in", **files)


# TFRecord


@case
def tfrecord_one_shard(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 60)
    return _made(data, folder / "out", "--num-shards", 1, at=[0, 3, 31, 59])


@case
def tfrecord_seven_shards(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 30, 80, 11)
    return _made(data, folder / "out", "--num-shards", 7, at=[0, 29, 30, 75, 110, 120])


@case
def tfrecord_33_shards(folder: pathlib.Path) -> dict[str, Any]:
    return _made(_tfrecords(folder, 30, 50), folder / "out", "--num-shards", 33)


@case
def tfrecord_by_size(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 50, 1, 90)
    return _made(data, folder / "out", "--shard-size", "2KiB", at=[50, 51, 140])


@case
def tfrecord_match_shards(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 5, 1, 40, 17)
    patterns = (data / "b.tfrecord", data / "[acd].*")
    facts.convert(*patterns, folder / "out", "--match-shards")
    return _found(folder / "out", at=[4, 5, 6, 46])


@case
def tfrecord_compressed(folder: pathlib.Path) -> dict[str, Any]:
    files = {n: inputs.tfrecord(inputs.records(30, seed=ord(n))) for n in "ab"}
    return _compressed(folder, "tfrecord", files)


@case
def tfrecord_gzip_cut(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.stored_gzip(inputs.tfrecord(inputs.records(150)))
    data = inputs.write(folder / "in", a__gz=data)
    return _made(data, folder / "out", "--num-shards", 5, at=[0, 60, 149])


@case
def tfrecord_frames_in_records(folder: pathlib.Path) -> dict[str, Any]:
    """Records that hold frames themselves, cut at every kind of byte."""
    inner = [inputs.tfrecord(inputs.records(n % 7, seed=n)) for n in range(40)]
    data = inputs.write(folder / "in", a__tfrecord=inputs.tfrecord(inner))
    options = ("--num-shards", 33, "--whole-files")
    refused = facts.tried("convert", data, folder / "out", *options[:2]).code
    assert refused
    return _made(data, folder / "out", *options, "--overwrite", at=[0, 20, 39])


@case
def tfrecord_large_records(folder: pathlib.Path) -> dict[str, Any]:
    large = [bytes([n]) * (n * 70_000 + 1) for n in range(5)]
    data = inputs.write(folder / "in", a__tfrecord=inputs.tfrecord(large))
    return _made(data, folder / "out", "--num-shards", 3, at=[4])


@case
def tfrecord_two_workers(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 30, 80, 11)
    facts.convert(data, folder / "out", "--num-shards", 7, workers=2)
    return _found(folder / "out", at=[0, 29, 30, 75, 110, 120])


@case
def tfrecord_damaged(folder: pathlib.Path) -> dict[str, Any]:
    """Which records are left out, where a payload, a header and an end are damaged."""
    kept = inputs.records(60, words=8)
    data = bytearray(inputs.tfrecord(kept))
    frames = [0]
    for item in kept:
        frames.append(frames[-1] + 16 + len(item))
    data[frames[10] + 12] ^= 1
    data[frames[30]] ^= 1
    source = inputs.write(folder / "in", a__tfrecord=bytes(data[:-3]))
    argv = (source, folder / "out", "--num-shards", 1, "--workers", 1)
    refused = facts.tried("convert", *argv).code
    facts.command("convert", *argv, "--on-corrupt", inputs.SKIP)
    held = set(facts.shards_of(facts.loader.open(folder / "out"))[0])
    lost = [number for number, item in enumerate(kept) if item not in held]
    return _found(folder / "out", at=[9, 10, 40]) | {"refused": refused, "lost": lost}


# How shards are encoded.


@case
def group_size(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 70, 33)
    options = ("--num-shards", 3, "--group-size", 16)
    found = _made(data, folder / "out", *options, at=[0, 16, 69, 70, 102])
    return found | {"chunks": facts.chunks_of(folder / "out")}


@case
def compressions(folder: pathlib.Path) -> dict[str, Any]:
    """All give the same records; only one stores them as they are."""
    long = b"ash " * 100
    kept = inputs.tfrecord([*inputs.records(70), long])
    data = inputs.write(folder / "in", a__tfrecord=kept)
    found, plain = {}, []
    for codec in ("zstd:1", "zstd:19", "brotli:4", "snappy", "uncompressed"):
        for group in (1, 4):
            out = folder / f"{codec.replace(':', '')}-{group}"
            options = ("--group-size", group, "--compression", codec)
            found[out.name] = _made(data, out, "--num-shards", 2, *options, at=[69])
            if any(long in path.read_bytes() for path in out.glob("*array_record*")):
                plain.append(out.name)
    return facts.alike(found) | {"plain": plain}


# ArrayRecord


@case
def arrayrecord_files(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in")
    for name, count in {"a": 40, "b": 51}.items():
        kept = inputs.records(count, seed=count, words=1200)
        inputs.array_record(data / f"{name}.array_record", kept)
    return _made(data, folder / "out", "--num-shards", 5, at=[0, 39, 40, 90])


@case
def arrayrecord_files_in_groups(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in")
    for n in range(2):
        path = data / f"{n}.array_record"
        kept = inputs.records(45, seed=n, words=1200)
        inputs.array_record(path, kept, group_size=10)
    found = {
        size: _made(
            data, folder / f"out{size}", "--num-shards", 4, "--group-size", size
        )
        for size in (1, 10, 16)
    }
    return facts.alike(found)


@case
def tfds_directory(folder: pathlib.Path) -> dict[str, Any]:
    """Both splits of a directory of TFDS, and one of them alone."""
    data = inputs.tfds(folder / "in", train=[20, 35], test=[8])
    facts.convert(data, folder / "out", "--match-shards")
    facts.convert(data, folder / "some", "--split", "train", "--num-shards", 3)
    return {
        "train": facts.of_dataset(folder / "out", "train"),
        "test": facts.of_dataset(folder / "out", "test"),
        "places": facts.places(folder / "out", [0, 19, 20, 54], "train"),
        "some": facts.of_dataset(folder / "some"),
    }


# JSON lines


@case
def jsonl_examples(folder: pathlib.Path) -> dict[str, Any]:
    files = {f"{n}__jsonl": inputs.jsonl(inputs.rows(40, seed=n)) for n in range(2)}
    data = inputs.write(folder / "in", **files)
    return _made(data, folder / "out", "--num-shards", 7, at=[0, 39, 40, 79])


@case
def jsonl_compressed(folder: pathlib.Path) -> dict[str, Any]:
    files = {n: inputs.jsonl(inputs.rows(30, seed=ord(n))) for n in "ab"}
    return _compressed(folder, "jsonl", files)


@case
def jsonl_gzip_cut(folder: pathlib.Path) -> dict[str, Any]:
    rows = inputs.jsonl(inputs.rows(150))
    data = inputs.write(folder / "in", a__jsonl__gz=inputs.stored_gzip(rows))
    return _made(data, folder / "out", "--num-shards", 5, at=[0, 60, 149])


@case
def jsonl_kinds_of_records(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in", a__jsonl=inputs.jsonl(inputs.rows(30)))
    kinds: dict[str, tuple[object, ...]] = {
        "line": ("--record", "line"),
        "column": ("--record", "column:text"),
        "some": ("--columns", "text,score"),
        "typed": ("--columns", "*,id:float"),
    }
    return {
        name: _made(data, folder / name, "--num-shards", 2, *options, at=[17])
        for name, options in kinds.items()
    }


@case
def jsonl_nested(folder: pathlib.Path) -> dict[str, Any]:
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
    column = ("--record", "column:meta.lang")
    return {
        "examples": _made(data, folder / "out", "--num-shards", 3, at=[39]),
        "features": sorted(facts.loader.open(folder / "out").features or ()),
        "column": _made(data, folder / "lang", "--num-shards", 1, *column),
    }


@case
def jsonl_ends_of_lines(folder: pathlib.Path) -> dict[str, Any]:
    """Blank lines, CR LF, a mark of the byte order, and no end of the last line."""
    rows = inputs.rows(20)
    text = inputs.jsonl(rows[:8], newline="\r\n") + b"\n  \n" + inputs.jsonl(rows[8:])
    data = inputs.write(folder / "in", a__jsonl=b"\xef\xbb\xbf" + text[:-1])
    found = {
        kind: _made(
            data, folder / kind, "--record", kind, "--num-shards", 3, at=[8, 19]
        )
        for kind in ("example", "line")
    }
    return found


@case
def jsonl_nulls(folder: pathlib.Path) -> dict[str, Any]:
    rows = inputs.rows(40)
    for row in rows[::6]:
        row["text"] = None
    data = inputs.write(folder / "in", a__jsonl=inputs.jsonl(rows))
    skip = ("--nulls", "skip", "--num-shards", 3)
    return {
        "kept": _made(data, folder / "kept", "--num-shards", 3, at=[6]),
        "skipped": _made(data, folder / "skipped", *skip),
        "column": _made(data, folder / "column", *skip, "--record", "column:text"),
    }


@case
def jsonl_damaged(folder: pathlib.Path) -> dict[str, Any]:
    text = inputs.jsonl(inputs.rows(40)).split(b"\n")
    text[11] = text[11][:-1]
    text[25] = text[25].replace(b":", b"")
    source = inputs.write(folder / "in", a__jsonl=b"\n".join(text))
    argv = (source, folder / "out", "--num-shards", 2, "--workers", 1)
    refused = facts.tried("convert", *argv).code
    facts.command("convert", *argv, "--on-corrupt", inputs.SKIP)
    return _found(folder / "out", at=[10, 11, 37]) | {"refused": refused}


# CSV, TSV and text


_CELLS = ["", "plain", "a,b\tc", 'He said: "no"', "two\nlines", "é\u2028", " blank "]


def _table(count: int, *, seed: int = 0, delimiter: str = ",") -> bytes:
    rows = inputs.rows(count, seed=seed)
    for number, row in enumerate(rows):
        row["text"] = _CELLS[number % len(_CELLS)]
        row["zip"] = f"{number:05d}"
    return inputs.table(rows, delimiter=delimiter)


_CSV = ("--input-format", "csv")


@case
def csv_examples(folder: pathlib.Path) -> dict[str, Any]:
    files = {f"{n}__csv": _table(40, seed=n) for n in range(2)}
    data = inputs.write(folder / "in", **files)
    options = (*_CSV, "--match-shards")
    return _made(data, folder / "out", *options, at=[0, 4, 39, 40, 79])


@case
def csv_cut(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in", a__csv=inputs.table(inputs.rows(60)))
    return _made(data, folder / "out", "--num-shards", 4, at=[0, 31, 59])


@case
def csv_compressed(folder: pathlib.Path) -> dict[str, Any]:
    files = {n: _table(30, seed=ord(n)) for n in "ab"}
    return _compressed(folder, "csv", files, *_CSV)


@case
def csv_kinds_of_records(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in", a__csv=_table(30))
    kinds: dict[str, tuple[object, ...]] = {
        "line": ("--record", "line"),
        "column": ("--record", "column:text"),
        "typed": ("--columns", "score:string,id:float,text"),
    }
    return {
        name: _made(data, folder / name, "--num-shards", 1, *_CSV, *options, at=[17])
        for name, options in kinds.items()
    }


@case
def tsv_examples(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in", a__tsv=_table(50, delimiter="\t"))
    options = ("--input-format", "tsv", "--num-shards", 1)
    return _made(data, folder / "out", *options, at=[0, 4, 49])


@case
def text_lines(folder: pathlib.Path) -> dict[str, Any]:
    kept = inputs.texts(90)
    kept[4::9] = [""] * len(kept[4::9])
    data = inputs.write(
        folder / "in",
        a__txt=inputs.lines(kept),
        b__txt=inputs.lines(kept[:20], newline="\r\n")[:-2],
    )
    options = ("--input-format", "text", "--num-shards", 7)
    return _made(data, folder / "out", *options, at=[0, 4, 50, 90, 109])


@case
def text_compressed(folder: pathlib.Path) -> dict[str, Any]:
    files = {n: inputs.lines(inputs.texts(30, seed=ord(n))) for n in "ab"}
    return _compressed(folder, "txt", files, "--input-format", "text")


# Parquet


def _parquet_rows(count: int) -> list[dict[str, Any]]:
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


@case
def parquet_examples(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in")
    inputs.parquet(data / "a.parquet", _parquet_rows(50), group_rows=20)
    inputs.parquet(data / "b.parquet", _parquet_rows(30))
    return _made(data, folder / "out", "--match-shards", at=[0, 21, 49, 50, 79])


@case
def parquet_cut(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in")
    inputs.parquet(data / "a.parquet", _parquet_rows(60), group_rows=20)
    return _made(data, folder / "out", "--num-shards", 5, at=[0, 31, 59])


@case
def parquet_kinds_of_records(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in")
    inputs.parquet(data / "a.parquet", _parquet_rows(40), group_rows=15)
    kinds: dict[str, tuple[object, ...]] = {
        "column": ("--record", "column:text"),
        "some": ("--columns", "id,tags"),
        "typed": ("--columns", "*,score:float"),
        "nulls": ("--columns", "id,maybe", "--nulls", "skip"),
        "column_nulls": ("--record", "column:maybe", "--nulls", "skip"),
    }
    return {
        name: _made(data, folder / name, "--num-shards", 1, *options)
        for name, options in kinds.items()
    }


@case
def hugging_face_directory(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in" / "data")
    for name, rows in {
        "train-00000-of-00002": inputs.rows(30),
        "train-00001-of-00002": inputs.rows(25, seed=1),
        "test-00000-of-00001": inputs.rows(9, seed=2),
    }.items():
        inputs.parquet(data / f"{name}.parquet", rows)
    facts.convert(folder / "in", folder / "out", "--match-shards")
    return {
        "train": facts.of_dataset(folder / "out", "train"),
        "test": facts.of_dataset(folder / "out", "test"),
        "places": facts.places(folder / "out", [29, 30], "train"),
    }


# WebDataset


@case
def webdataset_examples(folder: pathlib.Path) -> dict[str, Any]:
    files = {f"{n}__tar": inputs.samples(20, seed=n) for n in range(2)}
    data = inputs.write(folder / "in", **files)
    return _made(data, folder / "out", "--match-shards", at=[0, 19, 20, 39])


@case
def webdataset_cut(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in", a__tar=inputs.samples(40))
    return _made(data, folder / "out", "--num-shards", 3, at=[0, 20, 39])


@case
def webdataset_compressed(folder: pathlib.Path) -> dict[str, Any]:
    files = {n: inputs.samples(25, seed=ord(n)) for n in "ab"}
    return _compressed(folder, "tar", files)


@case
def webdataset_kinds_of_records(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in", a__tar=inputs.samples(30))
    kinds: dict[str, tuple[object, ...]] = {
        "column": ("--record", "column:txt"),
        "some": ("--columns", "__key__,cls"),
    }
    return {
        name: _made(data, folder / name, "--num-shards", 2, *options, at=[17])
        for name, options in kinds.items()
    }


# Functions, splits and names


@case
def mapped(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 40, 25)
    return {
        name: _made(
            data,
            folder / name,
            *("--map", f"tests.golden.functions:{name}", "--num-shards", 4),
        )
        for name in ("upper", "thin", "words")
    }


@case
def two_splits(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 40, 25)
    for split, file in {"train": "a", "test": "b"}.items():
        argv = (data / f"{file}.tfrecord", folder / "out", "--num-shards", 2)
        facts.convert(*argv, "--split", split, "--name", "both")
    return {
        split: facts.of_dataset(folder / "out", split) for split in ("train", "test")
    }


def _of_formats(folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes a file of each format but TFRecord."""
    data = inputs.write(
        folder / "in",
        a__jsonl=inputs.jsonl(inputs.rows(40)),
        b__csv=inputs.table(inputs.rows(40)),
        c__tar=inputs.samples(20),
        d__gz=inputs.stored_gzip(inputs.tfrecord(inputs.records(50))),
        e__txt=inputs.lines(inputs.texts(40)),
    )
    inputs.parquet(data / "f.parquet", _parquet_rows(30), group_rows=20)
    inputs.array_record(data / "g.array_record", inputs.records(40, words=1200))
    return sorted(data.iterdir())


# Beam


_BEAM = ("--runner", "FnApiRunner")


@case
def beam_tfrecord(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 30, 80, 11)
    facts.command("convert", data, folder / "out", "--num-shards", 7, *_BEAM)
    return _found(folder / "out", at=[0, 29, 30, 75, 110, 120])


@case
def beam_jsonl_in_groups(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.write(folder / "in", a__jsonl=inputs.jsonl(inputs.rows(70)))
    options = ("--num-shards", 3, "--group-size", 16)
    facts.command("convert", data, folder / "out", *options, *_BEAM)
    return _found(folder / "out", at=[0, 69])


@case
def beam_formats(folder: pathlib.Path) -> dict[str, Any]:
    """Each file as locally."""
    files = _of_formats(folder)
    found = {}
    for path in files:
        here = _made(path, folder / path.stem, "--num-shards", 2, at=[17])
        out = folder / f"{path.stem}-beam"
        facts.command("convert", path, out, "--num-shards", 2, *_BEAM)
        found[path.name] = facts.alike({"here": here, "Beam": _found(out, [17])})
    return found


@case
def beam_convert_files(folder: pathlib.Path) -> dict[str, Any]:
    """`ConvertFiles` in a pipeline, of two splits."""
    import apache_beam as beam

    from gristmill import transforms

    data = _tfrecords(folder, 30, 44)
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
    return {
        split: facts.of_dataset(folder / "out", split) for split in ("train", "test")
    }


# Buckets


@case
def bucket_tfrecord(folder: pathlib.Path) -> dict[str, Any]:
    data = _tfrecords(folder, 30, 80)
    with facts.bucket(folder) as server:
        for path in sorted(data.iterdir()):
            server.objects.put("bucket", f"in/{path.name}", path.read_bytes())
        options = ("--num-shards", 3)
        facts.convert("gs://bucket/in/*", "gs://bucket/out", *options)
        facts.convert("gs://bucket/in/*", folder / "from", *options)
        facts.convert(data, "gs://bucket/to", *options)
        outputs = ("gs://bucket/out", folder / "from", "gs://bucket/to")
        return facts.alike({str(out): _found(out, [0, 30, 109]) for out in outputs})


@case
def bucket_formats(folder: pathlib.Path) -> dict[str, Any]:
    """Each file as locally."""
    files = _of_formats(folder)
    found = {}
    with facts.bucket(folder) as server:
        for path in files:
            here = _made(path, folder / path.stem, "--num-shards", 2, at=[17])
            server.objects.put("bucket", f"in/{path.name}", path.read_bytes())
            source, out = f"gs://bucket/in/{path.name}", f"gs://bucket/{path.stem}"
            there = _made(source, out, "--num-shards", 2, at=[17])
            found[path.name] = facts.alike({"here": here, "bucket": there})
    return found


@case
def bucket_beam(folder: pathlib.Path) -> dict[str, Any]:
    data = inputs.jsonl(inputs.rows(40))
    with facts.bucket(folder) as server:
        server.objects.put("bucket", "in/a.jsonl", data)
        argv = ("gs://bucket/in/a.jsonl", "gs://bucket/out", "--num-shards", 3)
        facts.command("convert", *argv, *_BEAM)
        return _found("gs://bucket/out", [0, 39])
