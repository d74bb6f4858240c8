"""Changes of datasets, and what Python writers make."""

import collections
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
from tests.golden.facts import play, tried, verified

# Files of so many examples `id`, `text`, by a seed, of texts of so many words at most.
FILES = {"a": (60, 0, 30), "b": (25, 1, 30), "c": (11, 2, 30)}
FILES |= {"other": (25, 98, 30), "third": (25, 99, 30)}
WORDS = ["one", "Two", "two", "three", "one", "ONE ", "three", "four"]
NUMBERS = ("0,1,17,59", "3,61,62", "3,31", "7,80", "17")
LANGS = ("de", "en", "fr")
ROWS = {
    "a": inputs.rows(30),
    "0": inputs.rows(30),
    "1": inputs.rows(30, seed=1),
    "langs": [{"id": n, "score": n / 7, "lang": f"l{n}"} for n in range(60)],
    "keyed": [
        {"key": n, "score": n / 7, "lang": "de" if n % 3 else "en", "v": [n, -n]}
        for n in reversed(range(60))
    ],
    # Some records have no row, and some have two.
    "some": [
        *({"n": n, "good": n % 2 == 0, "name": f"ü{n}"} for n in range(0, 85, 3)),
        {"n": 3, "good": True, "name": "last"},
    ],
    "scores": [{"n": n, "score": n % 10 / 10, "lang": LANGS[n % 3]} for n in range(85)],
    "twice/a": [
        {"id": n % 11, "text": WORDS[n % 8] if n % 5 else f"own {n}"} for n in range(50)
    ],
} | {
    f"column{number}": [{"id": n, column: n * 10**number} for n in range(20)]
    for number, column in enumerate("aba")
}


def begin(**files):
    """Writes the files of a case: those above, and some of other sizes."""
    for name, (count, seed, words) in (FILES | files).items():
        rows = inputs.rows(count, seed=seed, words=words)
        examples = ({name: row[name] for name in ("id", "text")} for row in rows)
        data = inputs.tfrecord(map(encode_example, examples))
        pathlib.Path(f"{name}.tfrecord").write_bytes(data)
    pathlib.Path("twice").mkdir()
    for name, rows in ROWS.items():
        pathlib.Path(f"{name}.jsonl").write_bytes(inputs.jsonl(rows))
    for numbers in NUMBERS:
        pathlib.Path(numbers).write_text(numbers.replace(",", "\n") + "\n")
    inputs.parquet("b.parquet", inputs.rows(20, seed=1))


PLAIN = "--compression uncompressed"
MADE = f"convert a.tfrecord out --num-shards 3 {PLAIN}"
WORDY = f"convert a.tfrecord out --num-shards 1 {PLAIN}"
SCRIPTS = {
    # Append, replace, go back.
    "append_twice": f"""
        {MADE}
        append out b.tfrecord --num-shards 2
        append out c.tfrecord
        -> verified out 0 59 60 84 85 95
        -> first: first out""",
    "append_to_groups": f"""
        {MADE} --group-size 16
        append out b.tfrecord --num-shards 2
        -> verified out 69 70 114
        -> chunks: chunks out""",
    "append_other_format": """
        convert a.jsonl out --num-shards 2
        append out b.parquet
        -> verified out 29 30 49""",
    "append_the_same_files": f"""
        {MADE}
        -> refused: refused append out a.tfrecord --workers 1
        -> verified out""",
    "overwrite_and_roll_back": f"""
        {MADE}
        convert b.tfrecord out --overwrite --keep-replaced --num-shards 2
        -> after: verified out 0 24
        rollback out 1
        -> before: verified out 0 59
        rollback out 2
        -> after: verified out 0 24""",
    "overwrite": f"""
        {MADE}
        convert other.tfrecord out --split test --num-shards 2
        convert third.tfrecord out --num-shards 2 --overwrite
        -> splits out""",
    "roll_back_an_append": f"""
        {MADE}
        append out b.tfrecord
        rollback out 1
        -> back: verified out
        append out c.tfrecord
        clean out
        -> after: verified out 59 60 70""",
    # Columns.
    "attach_by_key": f"""
        {MADE}
        attach out keyed.jsonl --key id=key
        -> verified out""",
    "attach_by_number": f"""
        {MADE}
        append out b.tfrecord
        attach out some.jsonl --number n --missing '{{"good": false, "name": ""}}' \
            --repeated last
        -> verified out""",
    "attach_by_function": f"""
        {MADE}
        attach out --map tests.golden.functions:measures --workers 1
        -> columns out
        attach out --map tests.golden.functions:measures --overwrite \
            --runner FnApiRunner
        -> columns out""",
    "attach_again": f"""
        {MADE}
        attach out column0.jsonl --key id
        attach out column1.jsonl --key id
        attach out column2.jsonl --key id --overwrite
        -> columns out""",
    "columns_carried_along": f"""
        {MADE}
        attach out langs.jsonl --key id
        remove out --where "lang in ('l7', 'l8', 'l59')"
        convert out again --num-shards 2
        -> removed: verified out
        -> again: verified again""",
    "unique_on_beam": """
        convert twice/a.jsonl out --num-shards 3
        unique out --by text --runner FnApiRunner
        remove out --where 'duplicate_of >= 0'
        -> verified out 0 1 15""",
    # Chunks are copied: of two editions, into more shards, fewer and as many.
    "reshard_copied": f"""
        convert a.tfrecord out --num-shards 2 {PLAIN}
        append out b.tfrecord --num-shards 1
        convert out made1 --num-shards 1 {PLAIN}
        -> 1: verified made1 0 59 60 104
        convert out made2 --num-shards 2 {PLAIN}
        -> 2: verified made2 0 59 60 104
        convert out made7 --num-shards 7 {PLAIN}
        -> 7: verified made7 0 59 60 104
        convert out same --match-shards {PLAIN}
        -> same: verified same 0 104""",
    # Into groups, into groups of another size, and out of groups.
    "reshard_encoded": f"""
        {WORDY}
        convert out made16 --num-shards 4 --group-size 16 {PLAIN}
        -> 16: grouped made16 0 50 89
        convert made16 made5 --num-shards 4 --group-size 5 {PLAIN}
        -> 5: grouped made5 0 50 89
        convert made5 made1 --num-shards 4 --group-size 1 {PLAIN}
        -> 1: grouped made1 0 50 89""",
    "reshard_groups_copied": f"""
        {WORDY} --group-size 8
        convert out made --group-size 8 --num-shards 4 {PLAIN}
        -> grouped made 0 50 89""",
    "reshard_on_beam": f"""
        {MADE}
        convert out made --num-shards 2 {PLAIN} --runner FnApiRunner
        -> verified made 0 59""",
    # From two shards of three; the earlier edition stays.
    "remove_by_number": f"""
        {MADE}
        remove out --records 0,1,17,59
        -> verified out 0 14 15 55
        -> first: first out""",
    # Places after an append, a reshard, a removal and another reshard.
    "trace_through_changes": f"""
        {MADE}
        append out b.tfrecord --num-shards 2
        convert out made --num-shards 4 --group-size 4
        -> resharded: places made 0 30 61 104
        remove out --records 3,61,62
        -> removed: places out 2 3 59 60 101""",
    "trace_lines_through_changes": """
        convert 0.jsonl 1.jsonl out --num-shards 3
        remove out --records 3,31
        -> removed: places out 2 3 29 30 57""",
}
OTHER_FILES = {
    "append_to_groups": {"a": (70, 0, 30), "b": (45, 1, 30)},
    "attach_again": {"a": (20, 0, 30)},
    "reshard_copied": {"a": (60, 0, 800), "b": (45, 1, 1200)},
    "reshard_encoded": {"a": (90, 0, 800)},
    "reshard_groups_copied": {"a": (90, 0, 800)},
    "trace_through_changes": {"b": (45, 1, 30)},
}


def grouped(path, *at):
    return verified(path, *at) | {"chunks": facts.chunks_of(path)}


def scripted(name):
    begin(**OTHER_FILES.get(name, {}))
    return play(SCRIPTS[name], grouped=grouped)


for _name in SCRIPTS:
    case(lambda name=_name: scripted(name), _name)


@case
def column_writer():
    begin()
    play(MADE)
    with ColumnWriter("out", {"score": "float32", "lang": "text"}) as writer:
        for start in range(0, 60, 7):
            numbers = range(start, min(start + 7, 60))
            score = np.array(numbers, np.float32) / 3
            writer.write({"score": score, "lang": [f"l{n}" for n in numbers]})
    return facts.of_columns("out")


@case
def column_writer_in_parts():
    """Two parts, of which one is written in two attempts."""
    begin()
    play(MADE.replace("3", "5"))
    columns = {"logits": ("float16", (3,))}

    def write(part, stop=60):
        given = {"source": "teacher", "part": part, "parts": 2, "resume": True}
        with ColumnWriter("out", columns, **given) as writer:
            for n in range(writer.position_records, writer.records.stop):
                if n == stop:
                    raise TimeoutError
                writer.write({"logits": np.full((1, 3), n, np.float16)})

    write(0)
    try:
        write(1, stop=52)
    except TimeoutError:
        write(1)
    commit_columns("out", columns, source="teacher")
    return facts.of_columns("out")


@case
def unique():
    """Which records are duplicates of which first one."""
    begin()
    play("convert twice/a.jsonl out --num-shards 3")
    found = {}
    for kind in ("text", "normalised", "record"):
        play(f"unique out --by {kind} --overwrite")
        groups = collections.defaultdict(list)
        for number, kept in enumerate(loader.open("out").column("duplicate_of")):
            if kept >= 0:
                groups[str(kept)].append(number)
        found[kind] = {kept: str(numbers) for kept, numbers in groups.items()}
    return found


@case
def select():
    """In the loader, and as a dataset that `convert` writes."""
    begin()
    play(f"{MADE}\nappend out b.tfrecord\nattach out scores.jsonl --number n")
    found = {}
    for number, condition in enumerate(
        (
            "score > 0.5 and lang in ('de', 'fr')",
            "not (lang == 'en' or score <= 0.2)",
            "score == 0.3",
        )
    ):
        chosen, written = loader.open("out").select(condition), f"selected{number}"
        play(f'convert out {written} --select "{condition}" --num-shards 2')
        found[condition] = made = verified(written)
        assert made["all"] == facts.of_records(chosen)
        columns = [each.column("score") for each in (chosen, loader.open(written))]
        np.testing.assert_array_equal(*columns)
    mask = np.arange(85) % 4 == 1
    found["mask"] = {"all": facts.of_records(loader.open("out").select(mask))}
    return found


@case
def reshard_in_bucket():
    """Made in a bucket, changed there, and read back to this disk."""
    begin()
    with facts.bucket():
        return play(f"""
            {MADE.replace("out", "gs://bucket/out")}
            append gs://bucket/out b.tfrecord
            remove gs://bucket/out --records 7,80
            convert gs://bucket/out made --num-shards 2 {PLAIN}
            -> there: dataset gs://bucket/out 0 7 82
            -> here: verified made 0 82""")


@case
def remove_by_place_and_value():
    begin()
    play(MADE)
    batches = loader.global_batches(loader.open("out"), batch_size=1, shuffle="none")
    place = batches.locate(30, 0)
    name = f"{place.source_path}@{place.source_offset_bytes}\n"
    pathlib.Path("places").write_text(name)
    pathlib.Path("values").write_text("31\n5\n")
    return play("""
        remove out --records places
        remove out --records values --column id
        -> verified out 4 5 28 29 56""")


@case
def remove_from_groups():
    """Whole groups, parts of groups, and a whole shard; then append, and go back."""
    begin(a=(90, 0, 30))
    play(f"{MADE} --group-size 8")
    first, second, *_ = map(len, facts.shards_of(loader.open("out")))
    gone = [3, *range(8, 16), *range(first, first + second), 89]
    pathlib.Path("gone").write_text("".join(f"{each}\n" for each in gone))
    return play("""
        remove out --records gone
        -> removed: verified out 0 3 7 8 40
        append out b.tfrecord
        -> appended: verified out 50
        rollback out 1
        -> back: records out""")


@case
def remove_and_erase():
    """No file of the dataset has the record then."""
    begin()
    play(MADE)
    secret = loader.open("out")[17]

    def has_it():
        files = filter(pathlib.Path.is_file, pathlib.Path("out").rglob("*"))
        return any(secret in path.read_bytes() for path in files)

    assert has_it()
    play("remove out --records 17 --erase")
    assert not has_it()
    return verified("out", 16, 17)


@case
def index():
    """Files of two splits, by another writer."""
    data = inputs.write("data")
    for split, counts in {"train": (20, 35), "test": (9,)}.items():
        for n, count in enumerate(counts):
            name = f"odd-{split}.array_record-{n:05d}-of-{len(counts):05d}"
            kept = inputs.records(count, seed=count)
            inputs.array_record(data / name, kept, group_size=1 + 3 * n)
    return play("index data\nverify data\n-> splits data")


@case
def damaged_shard():
    """One bit of a record is found by `verify`, and by who reads it alone."""
    begin()
    play(MADE)
    dataset, refused = loader.open("out"), []
    shard = pathlib.Path(dataset.shard(1).path)
    data = bytearray(shard.read_bytes())
    data[data.index(dataset[25]) + 40] ^= 1
    shard.write_bytes(data)
    dataset = loader.open("out")
    for number in range(60):
        try:
            dataset[number]
        except loader.GristmillError:
            refused.append(number)
    return {"verify": tried("verify", "out").code, "refused": refused}


# Python writers


@case
def writer():
    """Shards by bytes, records that are empty and large, and a restart."""
    kept = [*inputs.records(80), b"x" * 5000, *inputs.records(20, seed=1)]

    def write(stop=-1):
        with Writer("out", shard_bytes=2000, resume=True) as made:
            for n in range(made.position_records, len(kept)):
                if n == stop:
                    raise TimeoutError
                made.write(kept[n])

    try:
        write(stop=61)
    except TimeoutError:
        write()
    return verified("out")


@case
def writer_in_groups():
    options = WriterOptions(group_size=16, compression="uncompressed")
    features = {"id": FeatureSpec(kind="int64", dtype="int64", shape=())}
    with Writer("out", split="test", writer=options, features=features) as made:
        for n in range(50):
            made.write(encode_example({"id": n}))
    return grouped("out") | {"features": sorted(loader.open("out").features)}


@case
def writer_in_parts():
    """Written in another order than that of the parts."""
    for part in (2, 0, 1):
        with Writer("out", part=part, parts=3, shard_bytes=900) as made:
            for item in inputs.records(10 * (part + 1), seed=part):
                made.write(item)
    commit_parts("out")
    return verified("out")


@case
def writer_replaces():
    begin()
    play(MADE)
    with Writer("out", name="out", overwrite=True, keep_replaced=True) as made:
        for item in inputs.records(30, seed=5):
            made.write(item)
    return {"now": verified("out"), "before": facts.of_dataset("out", edition=1)}


def written(out, elements, **options):
    import apache_beam as beam

    from gristmill import transforms

    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        write = transforms.WriteArrayRecords(out, **options)
        _ = pipeline | beam.Create(elements) | write
    return verified(out)


@case
def write_array_records():
    return {
        "counted": written("a", inputs.records(80), num_shards=3),
        "sized": written("b", inputs.records(80), shard_bytes=1500),
    }


@case
def write_array_records_by_key():
    keyed = [(f"k{n % 23}", item) for n, item in enumerate(inputs.records(80))]
    return facts.alike(
        {
            step: written(f"out{step}", keyed[::step], num_shards=3, keyed=True)
            for step in (1, -1)
        }
    )
