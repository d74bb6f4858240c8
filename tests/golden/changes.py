"""Changes of datasets, and what Python writers make."""

import collections
import json
import pathlib

import numpy as np

from gristmill import loader
from gristmill.dataset import (
    ColumnWriter,
    FeatureSpec,
    Writer,
    WriterOptions,
    commit_columns,
    commit_parts,
    encode_example,
)
from tests.golden import facts, inputs
from tests.golden.cases import case

_PLAIN = ("--compression", "uncompressed")


def _source(folder, name, count, *, seed=None, words=30):
    """Writes a TFRecord file of examples `id`, `text`, and returns its path."""
    rows = inputs.rows(
        count, seed="abc".index(name) if seed is None else seed, words=words
    )
    examples = [encode_example({k: row[k] for k in ("id", "text")}) for row in rows]
    data = {f"{name}__tfrecord": inputs.tfrecord(examples)}
    return inputs.write(folder / "in", **data) / f"{name}.tfrecord"


def _dataset(folder, count=60, *options, shards=3, words=30):
    """Converts a file of so many examples, without compression."""
    source, out = _source(folder, "a", count, words=words), folder / "out"
    facts.convert(source, out, "--num-shards", shards, *_PLAIN, *options)
    return out


def _append(folder, name, count, *options, **given):
    source = _source(folder, name, count, **given)
    facts.command("append", folder / "out", source, "--workers", 1, *options)


def _remove(folder, out, records, *options):
    """Removes records that are given by number or place, or by a column's value."""
    (folder / "gone").write_text("".join(f"{each}\n" for each in records))
    argv = ("--records", folder / "gone", "--workers", 1)
    facts.command("remove", out, *argv, *options)


def _found(out, at=(), *, edition=None):
    """Returns the facts of a dataset that `verify` finds whole."""
    facts.command("verify", out, "--workers", 1)
    found = facts.of_dataset(out, edition=edition)
    columns = facts.of_columns(out) if edition is None else {}
    return (
        found
        | ({"columns": columns} if columns else {})
        | ({"places": facts.places(out, at)} if at else {})
    )


def _jsonl(folder, rows):
    return inputs.write(folder, rows__jsonl=inputs.jsonl(rows)) / "rows.jsonl"


# Append, replace, go back


@case
def append_twice(folder):
    out = _dataset(folder)
    _append(folder, "b", 25, "--num-shards", 2)
    _append(folder, "c", 11)
    found = _found(out, [0, 59, 60, 84, 85, 95])
    return found | {"first": facts.of_dataset(out, edition=1)["all"]}


@case
def append_to_groups(folder):
    out = _dataset(folder, 70, "--group-size", 16)
    _append(folder, "b", 45, "--num-shards", 2)
    return _found(out, [69, 70, 114]) | {"chunks": facts.chunks_of(out)}


@case
def append_other_format(folder):
    source = inputs.write(folder / "in", a__jsonl=inputs.jsonl(inputs.rows(30)))
    facts.convert(source, folder / "out", "--num-shards", 2)
    inputs.parquet(folder / "b.parquet", inputs.rows(20, seed=1))
    facts.command("append", folder / "out", folder / "b.parquet", "--workers", 1)
    return _found(folder / "out", [29, 30, 49])


@case
def append_the_same_files(folder):
    """They are refused, and the dataset stays as it is."""
    out = _dataset(folder)
    argv = ("append", out, folder / "in" / "a.tfrecord", "--workers", 1)
    return {"refused": facts.tried(*argv).code} | _found(out)


@case
def overwrite_and_roll_back(folder):
    out = _dataset(folder)
    options = ("--overwrite", "--keep-replaced", "--num-shards", 2)
    facts.convert(_source(folder, "b", 25), out, *options)
    after = _found(out, [0, 24])
    facts.command("rollback", out, 1)
    before = _found(out, [0, 59])
    facts.command("rollback", out, 2)
    assert _found(out, [0, 24]) == after
    return {"after": after, "before": before}


@case
def overwrite(folder):
    """Only one split of two is replaced."""
    out = _dataset(folder)
    other, source = (_source(folder, n, 25, seed=ord(n)) for n in "bc")
    facts.convert(other, out, "--split", "test", "--num-shards", 2)
    facts.convert(source, out, "--num-shards", 2, "--overwrite")
    return {s: facts.of_dataset(out, s) for s in ("train", "test")}


@case
def roll_back_an_append(folder):
    """Then append other records, and delete what is replaced."""
    out = _dataset(folder)
    _append(folder, "b", 25)
    facts.command("rollback", out, 1)
    back = _found(out)
    _append(folder, "c", 11)
    facts.command("clean", out)
    return {"back": back, "after": _found(out, [59, 60, 70])}


# Columns


@case
def attach_by_key(folder):
    out = _dataset(folder)
    rows = [
        {"key": n, "score": n / 7, "lang": "de" if n % 3 else "en", "v": [n, -n]}
        for n in reversed(range(60))
    ]
    facts.command("attach", out, _jsonl(folder, rows), "--key", "id=key")
    return _found(out)


@case
def attach_by_number(folder):
    """Of a dataset of two editions; some have no row, and some have two."""
    out = _dataset(folder)
    _append(folder, "b", 25)
    rows = [{"n": n, "good": n % 2 == 0, "name": f"ü{n}"} for n in range(0, 85, 3)]
    rows += [{"n": 3, "good": True, "name": "last"}]
    missing = json.dumps({"good": False, "name": ""})
    options = ("--number", "n", "--missing", missing, "--repeated", "last")
    facts.command("attach", out, _jsonl(folder, rows), *options)
    return _found(out)


@case
def attach_by_function(folder):
    out = _dataset(folder)
    function = ("--map", "tests.golden.functions:measures")
    facts.command("attach", out, *function, "--workers", 1)
    here = facts.of_columns(out)
    facts.command("attach", out, *function, "--overwrite", "--runner", "FnApiRunner")
    return facts.alike({"here": here, "Beam": facts.of_columns(out)})


@case
def attach_again(folder):
    """A column is replaced, and another one stays."""
    out = _dataset(folder, 20)
    for number, column in enumerate(("a", "b", "a")):
        rows = [{"id": n, column: n * 10**number} for n in range(20)]
        options = ("--key", "id", *(("--overwrite",) if number == 2 else ()))
        facts.command("attach", out, _jsonl(folder / str(number), rows), *options)
    return facts.of_columns(out)


@case
def columns_carried_along(folder):
    """Columns through a removal, a conversion of the dataset, and an append of it."""
    out = _dataset(folder)
    rows = [{"id": n, "score": n / 7, "lang": f"l{n}"} for n in range(60)]
    facts.command("attach", out, _jsonl(folder, rows), "--key", "id")
    where = "lang in ('l7', 'l8', 'l59')"
    facts.command("remove", out, "--where", where, "--workers", 1)
    facts.convert(out, folder / "again", "--num-shards", 2)
    return {"removed": _found(out), "again": _found(folder / "again")}


@case
def column_writer(folder):
    out = _dataset(folder)
    with ColumnWriter(out, {"score": "float32", "lang": "text"}) as writer:
        for begin in range(0, 60, 7):
            numbers = range(begin, min(begin + 7, 60))
            score = np.array(numbers, np.float32) / 3
            writer.write({"score": score, "lang": [f"l{n}" for n in numbers]})
    return facts.of_columns(out)


@case
def column_writer_in_parts(folder):
    """Two parts, of which one is written in two attempts."""
    out = _dataset(folder, 60, shards=5)
    columns = {"logits": ("float16", (3,))}

    def write(part, stop=60):
        given = {"source": "teacher", "part": part, "parts": 2, "resume": True}
        with ColumnWriter(out, columns, **given) as writer:
            for n in range(writer.position_records, writer.records.stop):
                if n == stop:
                    raise TimeoutError
                writer.write({"logits": np.full((1, 3), n, np.float16)})

    write(0)
    try:
        write(1, stop=52)
    except TimeoutError:
        write(1)
    commit_columns(out, columns, source="teacher")
    return facts.of_columns(out)


# Duplicates and selections


def _with_duplicates(folder):
    words = ["one", "Two", "two", "three", "one", "ONE ", "three", "four"]
    rows = [
        {"id": n % 11, "text": words[n % 8] if n % 5 else f"own {n}"} for n in range(50)
    ]
    source = inputs.write(folder / "in", a__jsonl=inputs.jsonl(rows))
    facts.convert(source, folder / "out", "--num-shards", 3)
    return folder / "out"


@case
def unique(folder):
    """Which records are duplicates of which first one."""
    out = _with_duplicates(folder)
    found = {}
    for kind in ("text", "normalised", "record"):
        facts.command("unique", out, "--by", kind, "--overwrite", "--workers", 1)
        first = np.asarray(loader.open(out).column("duplicate_of")).tolist()
        groups = collections.defaultdict(list)
        for number, kept in enumerate(first):
            if kept >= 0:
                groups[str(kept)].append(number)
        found[kind] = {kept: str(numbers) for kept, numbers in groups.items()}
    return found


@case
def unique_on_beam(folder):
    out = _with_duplicates(folder)
    facts.command("unique", out, "--by", "text", "--runner", "FnApiRunner")
    facts.command("remove", out, "--where", "duplicate_of >= 0", "--workers", 1)
    return _found(out, [0, 1, 15])


def _with_columns(folder):
    out = _dataset(folder)
    _append(folder, "b", 25)
    rows = [
        {"n": n, "score": n % 10 / 10, "lang": ("de", "en", "fr")[n % 3]}
        for n in range(85)
    ]
    facts.command("attach", out, _jsonl(folder, rows), "--number", "n")
    return out


_CONDITIONS = (
    "score > 0.5 and lang in ('de', 'fr')",
    "not (lang == 'en' or score <= 0.2)",
    "score == 0.3",
)


@case
def select(folder):
    """In the loader, and as a dataset that `convert` writes."""
    out = _with_columns(folder)
    found = {}
    for number, condition in enumerate(_CONDITIONS):
        chosen = loader.open(out).select(condition)
        written = folder / f"selected{number}"
        facts.convert(out, written, "--select", condition, "--num-shards", 2)
        made = _found(written)
        assert made["all"] == facts.of_records(chosen)
        scores = np.asarray(chosen.column("score"))
        assert (
            scores.tolist() == np.asarray(loader.open(written).column("score")).tolist()
        )
        found[condition] = made
    mask = np.arange(85) % 4 == 1
    found["mask"] = {"all": facts.of_records(loader.open(out).select(mask))}
    return found


# Reshard


@case
def reshard_copied(folder):
    """Chunks are copied: of two editions, into more shards, fewer and as many."""
    out = _dataset(folder, shards=2, words=800)
    _append(folder, "b", 45, "--num-shards", 1, words=1200)
    found = {}
    for shards in (1, 2, 7):
        made = folder / f"made{shards}"
        facts.convert(out, made, "--num-shards", shards, *_PLAIN)
        found[str(shards)] = _found(made, [0, 59, 60, 104])
    facts.convert(out, folder / "same", "--match-shards", *_PLAIN)
    found["same"] = _found(folder / "same", [0, 104])
    return found


@case
def reshard_encoded(folder):
    """Into groups, into groups of another size, and out of groups."""
    out = _dataset(folder, 90, shards=1, words=800)
    found = {}
    for size in (16, 5, 1):
        made = folder / f"made{size}"
        facts.convert(out, made, "--num-shards", 4, "--group-size", size, *_PLAIN)
        chunks = {"chunks": facts.chunks_of(made)}
        found[str(size)] = _found(made, [0, 50, 89]) | chunks
        out = made
    return found


@case
def reshard_groups_copied(folder):
    out = _dataset(folder, 90, "--group-size", 8, shards=1, words=800)
    options = ("--group-size", 8, "--num-shards", 4, *_PLAIN)
    facts.convert(out, folder / "made", *options)
    chunks = {"chunks": facts.chunks_of(folder / "made")}
    return _found(folder / "made", [0, 50, 89]) | chunks


@case
def reshard_on_beam(folder):
    out = _dataset(folder)
    options = ("--num-shards", 2, *_PLAIN)
    facts.command("convert", out, folder / "made", *options, "--runner", "FnApiRunner")
    return _found(folder / "made", [0, 59])


@case
def reshard_in_bucket(folder):
    """Made in a bucket, changed there, and read back to this disk."""
    with facts.bucket(folder):
        first, out = _source(folder, "a", 60), "gs://bucket/out"
        facts.convert(first, out, "--num-shards", 3, *_PLAIN)
        more = _source(folder, "b", 25)
        facts.command("append", out, more, "--workers", 1)
        _remove(folder, out, [7, 80])
        facts.convert(out, folder / "made", "--num-shards", 2, *_PLAIN)
        there = facts.of_dataset(out) | {"places": facts.places(out, [0, 7, 82])}
    return {"there": there, "here": _found(folder / "made", [0, 82])}


# Remove


@case
def remove_by_number(folder):
    """From two shards of three; the earlier edition stays."""
    out = _dataset(folder)
    _remove(folder, out, [0, 1, 17, 59])
    found = _found(out, [0, 14, 15, 55])
    return found | {"first": facts.of_dataset(out, edition=1)["all"]}


@case
def remove_by_place_and_value(folder):
    out = _dataset(folder)
    place = loader.global_batches(
        loader.open(out), batch_size=1, shuffle="none"
    ).locate(30, 0)
    _remove(folder, out, [f"{place.source_path}@{place.source_offset_bytes}"])
    _remove(folder, out, [31, 5], "--column", "id")
    return _found(out, [4, 5, 28, 29, 56])


@case
def remove_from_groups(folder):
    """Whole groups, parts of groups, and a whole shard; then append, and go back."""
    out = _dataset(folder, 90, "--group-size", 8)
    sizes = [int(shard.split()[0]) for shard in facts.of_dataset(out)["shards"]]
    gone = [3, *range(8, 16), *range(sizes[0], sizes[0] + sizes[1]), 89]
    _remove(folder, out, gone)
    removed = _found(out, [0, 3, 7, 8, 40])
    _append(folder, "b", 25)
    appended = _found(out, [50])
    facts.command("rollback", out, 1)
    return {"removed": removed, "appended": appended, "back": _found(out)["all"]}


@case
def remove_and_erase(folder):
    """No file of the dataset has the record then."""
    out = _dataset(folder)
    secret = loader.open(out)[17]

    def has_it():
        files = (path for path in out.rglob("*") if path.is_file())
        return any(secret in path.read_bytes() for path in files)

    assert has_it()
    _remove(folder, out, [17], "--erase")
    assert not has_it()
    return _found(out, [16, 17])


@case
def trace_through_changes(folder):
    """Places after an append, a reshard, a removal and another reshard."""
    out = _dataset(folder)
    _append(folder, "b", 45, "--num-shards", 2)
    facts.convert(out, folder / "made", "--num-shards", 4, "--group-size", 4)
    found = {"resharded": facts.places(folder / "made", [0, 30, 61, 104])}
    _remove(folder, out, [3, 61, 62])
    return found | {"removed": facts.places(out, [2, 3, 59, 60, 101])}


@case
def trace_lines_through_changes(folder):
    files = {f"{n}__jsonl": inputs.jsonl(inputs.rows(30, seed=n)) for n in range(2)}
    source = inputs.write(folder / "in", **files)
    facts.convert(source, folder / "out", "--num-shards", 3)
    _remove(folder, folder / "out", [3, 31])
    return {"removed": facts.places(folder / "out", [2, 3, 29, 30, 57])}


# Index in place


@case
def index(folder):
    """Files of two splits, by another writer."""
    data = inputs.write(folder / "data")
    for split, counts in {"train": (20, 35), "test": (9,)}.items():
        for n, count in enumerate(counts):
            name = f"odd-{split}.array_record-{n:05d}-of-{len(counts):05d}"
            kept = inputs.records(count, seed=count)
            inputs.array_record(data / name, kept, group_size=1 + 3 * n)
    facts.command("index", data, "--workers", 1)
    facts.command("verify", data, "--workers", 1)
    return {split: facts.of_dataset(data, split) for split in ("train", "test")}


@case
def damaged_shard(folder):
    """One bit of a record is found by `verify`, and by who reads it alone."""
    out = _dataset(folder)
    dataset = loader.open(out)
    wanted, shard = dataset[25], pathlib.Path(dataset.shard(1).path)
    data = bytearray(shard.read_bytes())
    data[data.index(wanted) + 40] ^= 1
    shard.write_bytes(data)
    refused = []
    dataset = loader.open(out)
    for number in range(60):
        try:
            dataset[number]
        except loader.GristmillError:
            refused.append(number)
    verified = facts.tried("verify", out, "--workers", 1).code
    return {"verify": verified, "refused": refused}


# Python writers


@case
def writer(folder):
    """Shards by bytes, records that are empty and large, and a restart."""
    kept = [*inputs.records(80), b"x" * 5000, *inputs.records(20, seed=1)]

    def write(stop=-1):
        with Writer(folder / "out", shard_bytes=2000, resume=True) as made:
            for n in range(made.position_records, len(kept)):
                if n == stop:
                    raise TimeoutError
                made.write(kept[n])

    try:
        write(stop=61)
    except TimeoutError:
        write()
    return _found(folder / "out")


@case
def writer_in_groups(folder):
    options = WriterOptions(group_size=16, compression="uncompressed")
    features = {"id": FeatureSpec(kind="int64", dtype="int64", shape=())}
    with Writer(
        folder / "out", split="test", writer=options, features=features
    ) as made:
        for n in range(50):
            made.write(encode_example({"id": n}))
    described = loader.open(folder / "out").features or {}
    return _found(folder / "out") | {
        "features": sorted(described),
        "chunks": facts.chunks_of(folder / "out"),
    }


@case
def writer_in_parts(folder):
    """Written in another order than that of the parts."""
    for part in (2, 0, 1):
        options = {"part": part, "parts": 3, "shard_bytes": 900}
        with Writer(folder / "out", **options) as made:
            for item in inputs.records(10 * (part + 1), seed=part):
                made.write(item)
    commit_parts(folder / "out")
    return _found(folder / "out")


@case
def writer_replaces(folder):
    out = _dataset(folder)
    with Writer(out, name="out", overwrite=True, keep_replaced=True) as made:
        for item in inputs.records(30, seed=5):
            made.write(item)
    return {"now": _found(out), "before": _found(out, edition=1)}


def _written(folder, elements, **options):
    import apache_beam as beam

    from gristmill import transforms

    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | beam.Create(elements)
            | transforms.WriteArrayRecords(folder / "out", **options)
        )
    return _found(folder / "out")


@case
def write_array_records(folder):
    return {
        "counted": _written(folder / "a", inputs.records(80), num_shards=3),
        "sized": _written(folder / "b", inputs.records(80), shard_bytes=1500),
    }


@case
def write_array_records_by_key(folder):
    keyed = [(f"k{n % 23}", item) for n, item in enumerate(inputs.records(80))]
    found = {
        str(step): _written(folder / str(step), keyed[::step], num_shards=3, keyed=True)
        for step in (1, -1)
    }
    return facts.alike(found)
