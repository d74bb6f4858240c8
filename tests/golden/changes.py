"""Changes of datasets, and what Beam writes."""

import pathlib

from gristmill.dataset import encode_example
from tests.golden import facts, inputs
from tests.golden.cases import case
from tests.golden.facts import play, verified

# Files of so many examples `id`, `text`, by a seed, of texts of so many words at most.
FILES = {"a": (60, 0, 30), "b": (25, 1, 30), "c": (11, 2, 30)}
FILES |= {"other": (25, 98, 30), "third": (25, 99, 30)}
NUMBERS = ("0,1,17,59", "3,61,62", "7,80")


def begin(**files):
    """Writes the files of a case: those above, and some of other sizes."""
    for name, (count, seed, words) in (FILES | files).items():
        rows = inputs.rows(count, seed=seed, words=words)
        examples = ({name: row[name] for name in ("id", "text")} for row in rows)
        data = inputs.tfrecord(map(encode_example, examples))
        pathlib.Path(f"{name}.tfrecord").write_bytes(data)
    some = [{"n": n, "good": n % 2 == 0, "name": f"ü{n}"} for n in range(0, 85, 3)]
    twice = {"n": 3, "good": True, "name": "last"}
    pathlib.Path("some.jsonl").write_bytes(inputs.jsonl([*some, twice]))
    for numbers in NUMBERS:
        pathlib.Path(numbers).write_text(numbers.replace(",", "\n") + "\n")


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
    # Some records have no row, and one has two.
    "attach_by_number": f"""
        {MADE}
        append out b.tfrecord
        attach out some.jsonl --number n --missing '{{"good": false, "name": ""}}' \
            --repeated last
        -> verified out
        -> columns: columns out""",
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
}
OTHER_FILES = {
    "append_to_groups": {"a": (70, 0, 30), "b": (45, 1, 30)},
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
def write_array_records():
    """Which shard a record is in, and where."""
    import apache_beam as beam

    from gristmill.transforms import WriteArrayRecords

    records = inputs.records(80)
    keyed = [(f"k{n % 23}", record) for n, record in enumerate(records)]
    found = {}
    for name, elements, options in (
        ("counted", records, {"num_shards": 3}),
        ("sized", records, {"shard_bytes": 1500}),
        ("keyed", keyed, {"num_shards": 3, "keyed": True}),
    ):
        with beam.Pipeline(runner="FnApiRunner") as pipeline:
            made = pipeline | beam.Create(elements)
            _ = made | WriteArrayRecords(name, **options)
        found[name] = verified(name)
    return found
