"""Makes the datasets of this folder, and the records expected of each.

    python -m tests.conformance.make [NAME...]

Run it only to add datasets, by name: those that are committed stay as they are, for
they stand for what users have on their disks.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata.manifest import open_manifest, states_of
from tests.rows.packed_shards import conversations, supervised_dataset
from tests.support.records import frames_of, write_array_records

ROOT = pathlib.Path(__file__).parents[2]
DATASETS = pathlib.Path(__file__).parent / "datasets"
MAIN = "from gristmill.pipelines.commands.main import main; main()"
Make = Callable[[], None]
CASES: dict[str, tuple[str, Make]] = {}  # By name: a sentence, and what makes it.


def case(name: str, about: str) -> Callable[[Make], Make]:
    """Adds a dataset; what is decorated makes it in the directory NAME."""

    def add(make: Make) -> Make:
        CASES[name] = (about, make)
        return make

    return add


def run(command: str, *, code: int = 0) -> str:
    """Runs a command line of gristmill."""
    environment = dict(os.environ, GRISTMILL_CACHE_DIR=os.path.abspath("cache"))
    arguments = [*command.split(), "--workers", "1"]
    if arguments[0] in ("rollback", "clean"):
        arguments = arguments[:-2]
    done = subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, (command, done.stdout, done.stderr)
    return done.stdout


def texts(begin: int, end: int) -> list[bytes]:
    """Returns records of several lengths, one of them empty."""
    return [b"record %d " % n * (n % 7) for n in range(begin, end)]


def write_input(name: str, records: Sequence[bytes]) -> None:
    """Writes a TFRecord file."""
    pathlib.Path(name).write_bytes(frames_of(records))


def first(name: str, options: str = "") -> None:
    """Converts 30 records to a dataset of two shards."""
    write_input("a.tfrecord", texts(0, 30))
    run(f"convert a.tfrecord {name} --num-shards 2 {options}")


def appended(name: str, options: str = "") -> None:
    """Appends 20 records to a dataset."""
    write_input("b.tfrecord", texts(30, 50))
    run(f"append {name} b.tfrecord --num-shards 1 {options}")


def removed(name: str, numbers: Sequence[int], options: str = "") -> None:
    """Removes records of a dataset by their numbers."""
    pathlib.Path("numbers").write_text("".join(f"{n}\n" for n in numbers))
    run(f"remove {name} --records numbers {options}")


def indexed(name: str, *options: str) -> None:
    """Indexes files of 10 records each, made by the official writer."""
    pathlib.Path(name).mkdir()
    for number, each in enumerate(options):
        path = f"{name}/part-{number}.array_record"
        write_array_records(path, texts(10 * number, 10 * number + 10), options=each)
    run(f"index {name} --name plain --split train")


def add_encodings() -> None:
    """Adds a dataset for each codec, group size and writer."""
    for codec in ("zstd:3", "brotli:6", "snappy", "uncompressed"):
        for group in (1, 7):
            for writer in ("gristmill", "official"):
                if writer == "official" and group == 1 and codec != "zstd:3":
                    continue
                name = f"{codec.partition(':')[0]}_{group}_{writer}"
                options = f"--compression {codec} --group-size {group}"
                if writer == "official":
                    options = f"group_size:{group},{codec}"
                make = first if writer == "gristmill" else indexed
                case(name, f"{codec}, {group} records a chunk, {writer} writer")(
                    functools.partial(make, name, options)
                )


add_encodings()


@case("blocks", "records that cross the blocks of a shard, and empty ones")
def _blocks() -> None:
    random = np.random.default_rng(0)
    sizes = [65_536 * 2, 0, 0, 1, 65_447, 24, 200_000, 0]
    write_input("a.tfrecord", [random.bytes(size) for size in sizes])
    run("convert a.tfrecord blocks --num-shards 1 --compression uncompressed")


@case("empty_records", "a chunk of more records than bytes")
def _empty_records() -> None:
    write_input("a.tfrecord", [b""] * 300)
    run("convert a.tfrecord empty_records --num-shards 1 --group-size 100")


@case("splits", "two splits")
def _splits() -> None:
    first("splits")
    write_input("b.tfrecord", texts(30, 35))
    run("convert b.tfrecord splits --split validation --num-shards 1")


@case("indexed", "files of the official writer, indexed in place under their own names")
def _indexed() -> None:
    padded = "group_size:1,pad_to_block_boundary:true"
    indexed("indexed", "group_size:3,snappy", padded)


@case("written", "a program's Writer; its table has a column more")
def _written() -> None:
    with Writer("written", records_per_shard=12) as writer:
        for record in texts(0, 30):
            writer.write(record)


@case("skipped", "an input file whose damage was left out")
def _skipped() -> None:
    data = bytearray(frames_of(texts(0, 30)))
    data[len(data) // 2] ^= 1
    pathlib.Path("a.tfrecord").write_bytes(data)
    run("convert a.tfrecord skipped --num-shards 1 --on-corrupt skip")


@case("table", "rows of CSV as tf.train.Example, with their features described")
def _table() -> None:
    rows = "".join(f"{n},{n / 4},name {n}\n" for n in range(20))
    pathlib.Path("a.csv").write_text("id,share,name\n" + rows)
    run("convert a.csv table --num-shards 1")


@case("appended", "two editions")
def _appended() -> None:
    first("appended")
    appended("appended")


@case("appended_otherwise", "editions of different codecs and groups")
def _appended_otherwise() -> None:
    first("appended_otherwise", "--compression snappy --group-size 7")
    appended("appended_otherwise", "--compression brotli:6 --group-size 1")


@case("replaced", "one edition, number 2, in the place of the first")
def _replaced() -> None:
    first("replaced")
    write_input("b.tfrecord", texts(30, 50))
    run("convert b.tfrecord replaced --num-shards 1 --overwrite")


@case("replaced_kept", "the state that was replaced is kept")
def _replaced_kept() -> None:
    first("replaced_kept")
    write_input("b.tfrecord", texts(30, 50))
    run("convert b.tfrecord replaced_kept --num-shards 1 --overwrite --keep-replaced")


@case("removed", "records removed from one of two editions")
def _removed() -> None:
    first("removed")
    appended("removed")
    removed("removed", [0, 3, 29])


@case("removed_twice", "removed from both editions, then again, then appended")
def _removed_twice() -> None:
    first("removed_twice")
    appended("removed_twice")
    removed("removed_twice", [3, 7, 41])
    removed("removed_twice", [0, 20])
    write_input("c.tfrecord", texts(50, 60))
    run("append removed_twice c.tfrecord --num-shards 1")


@case("erased", "removed, and the edition before deleted")
def _erased() -> None:
    first("erased")
    removed("erased", [5, 6], "--erase")


@case("rolled_back", "gone back to the first edition")
def _rolled_back() -> None:
    first("rolled_back")
    appended("rolled_back")
    run("rollback rolled_back 1")


def packed(name: str, options: str) -> None:
    """Packs 40 documents of ids into rows of 16 tokens."""
    documents = [[(n * 7919 + i * 31) % 60_000 for i in range(n)] for n in range(1, 41)]
    lines = [json.dumps({"tokens": ids}) + "\n" for ids in documents]
    pathlib.Path("a.jsonl").write_text("".join(lines))
    run(f"pack a.jsonl {name} --column tokens --length 16 --num-shards 1 {options}")


for _name, _options in {
    "packed_2": "--vocabulary-size 60000",
    "packed_3": "--vocabulary-size 100000",
    "packed_4": "",
    "packed_concat": "--vocabulary-size 60000 --pack concat",
    "packed_example": "--vocabulary-size 60000 --rows example",
}.items():
    case(_name, f"packed rows: {_options or 'ids of 32 bits'}")(
        lambda n=_name, o=_options: packed(n, o)
    )


@case("chat", "rows of conversations, packed")
def chats() -> None:
    """Packs 40 conversations, some with weights, into rows of 24 tokens."""
    made = conversations(40, seed=40, vocabulary=60_000, most=9)
    for number, each in enumerate(made[::3]):
        weight = (0.5, 1.0, 0.0, 2.5)[number % 4]
        each.said[:] = [
            said and said._replace(weight=weight if said.trained else 1.0)
            for said in each.said
        ]
    supervised_dataset("chat", [made], name="chat", length=24, vocabulary_size=60_000)


def flip(path: str, at: int) -> None:
    """Changes one bit of a file."""
    data = bytearray(pathlib.Path(path).read_bytes())
    data[at] ^= 1
    pathlib.Path(path).write_bytes(data)


def change_json(path: str, change: Callable[[Any], None]) -> None:
    """Changes `dataset.json`."""
    fields = json.loads(pathlib.Path(path).read_bytes())
    change(fields)
    pathlib.Path(path).write_text(json.dumps(fields, indent=2) + "\n")


def truncate(path: str, size: int) -> None:
    """Cuts a file."""
    os.truncate(path, size)


def swap(one: str, other: str) -> None:
    """Exchanges two files."""
    os.rename(one, "aside")
    os.rename(other, one)
    os.rename("aside", other)


# By name: a sentence, the file to blame (None: only `verify` sees it), the options of
# the dataset and the damage. {} is the first shard.
SHARD, OTHER = (
    "{n}-train.array_record-00000-of-00002",
    "{n}-train.array_record-00001-of-00002",
)
PLAIN, GROUPS = "--compression uncompressed", "--group-size 7"
TABLE, JSON = "index/{n}-train.shards.npz", "dataset.json"


def version_2(fields: Any) -> None:
    """Makes it of a version that nobody knows."""
    fields["format_version"] = 2


def outside(fields: Any) -> None:
    """Makes the table a file outside the dataset."""
    fields["splits"]["train"]["table"] = "../train.shards.npz"


DAMAGED: dict[str, tuple[str, str | None, str, str, Callable[[str], None]]] = {
    "record": ("a bit of a record", SHARD, PLAIN, SHARD, lambda p: flip(p, 155)),
    "chunk": ("a bit of zstd", SHARD, GROUPS, SHARD, lambda p: flip(p, 130)),
    "chunk_header": ("a chunk's type", SHARD, "", SHARD, lambda p: flip(p, 64 + 24)),
    "footer": ("a bit of the footer", None, "", SHARD, lambda p: flip(p, 65_700)),
    "short_shard": ("a shard cut", SHARD, "", SHARD, lambda p: truncate(p, 65_536)),
    "no_shard": ("a shard deleted", SHARD, "", SHARD, os.remove),
    "index_header": (
        *("a bit of an index's header", f"index/{SHARD}.index", ""),
        *(f"index/{SHARD}.index", lambda p: flip(p, 16)),
    ),
    "index_body": (
        *("a bit of an index's body", f"index/{SHARD}.index", GROUPS),
        *(f"index/{SHARD}.index", lambda p: flip(p, 100)),
    ),
    "no_index": (
        "an index deleted",
        f"index/{SHARD}.index",
        "",
        f"index/{SHARD}.index",
        os.remove,
    ),
    "swapped": (
        *("two shards exchanged", SHARD, PLAIN, SHARD),
        lambda p: swap(p, p.replace("00000-of", "00001-of")),
    ),
    "table_bit": ("a bit of the table", TABLE, "", TABLE, lambda p: flip(p, 300)),
    "no_table": ("the table deleted", TABLE, "", TABLE, os.remove),
    "version": ("version 2", JSON, "", JSON, lambda p: change_json(p, version_2)),
    "outside": ("a path outside", JSON, "", JSON, lambda p: change_json(p, outside)),
    "not_json": ("dataset.json cut", JSON, "", JSON, lambda p: truncate(p, 100)),
    "no_json": ("no dataset.json", JSON, "", JSON, os.remove),
}


def read_all(dataset: str, split: str, edition: int | None = None) -> list[bytes]:
    """Returns the records that the loader reads."""
    opened = loader.open(dataset, split, edition=edition, cache_dir="")
    return [bytes(record) for record in opened[range(len(opened))]]


def states_expected(name: str) -> dict[str, Any]:
    """Returns, for each split, its records now and as of each known edition."""
    manifest = open_manifest(name)
    splits = {}
    for split, described in manifest.splits.items():
        states = {
            str(edition): {
                "records_digest": state.records_digest,
                "records": [
                    base64.b64encode(record).decode()
                    for record in read_all(name, split, edition)
                ],
            }
            for edition, state in states_of(described).items()
        }
        splits[split] = {"edition": described.edition, "states": states}
    return {
        "format_version": json.loads(pathlib.Path(name, JSON).read_bytes())[
            "format_version"
        ],
        "content_digest": manifest.content_digest,
        "splits": splits,
    }


def verified(name: str) -> dict[str, Any]:
    """Returns what `gristmill verify` says: its exit code, and the files it blames."""
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "verify", name, "--json", "--workers", "1"],
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout)
    paths = sorted({finding["path"] for finding in result.get("findings", [])})
    error = result.get("error", {}).get("type")
    return {"exit_code": done.returncode, "findings": paths, "error": error}


def make(name: str) -> None:
    """Makes a dataset here, what is expected of it, and its archive."""
    expected: dict[str, Any]
    if name in CASES:
        about, maker = CASES[name]
        maker()
        expected = {"about": about, **states_expected(name)}
    else:
        about, blamed, options, damaged, damage = DAMAGED[name.removeprefix("damaged_")]
        first(name, options)
        damage(f"{name}/{damaged.format(n=name)}")
        expected = {"about": about, "blamed": blamed and blamed.format(n=name)}
        try:
            read_all(name, "train")
            expected["loader"] = None
        except GristmillError as error:
            expected["loader"] = type(error).__name__
    expected["verify"] = verified(name)
    with zipfile.ZipFile(
        DATASETS / f"{name}.zip", "w", zipfile.ZIP_DEFLATED
    ) as archive:
        for path in sorted(pathlib.Path(name).rglob("*")):
            if path.is_file():
                info = zipfile.ZipInfo(str(path))
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, path.read_bytes())
    text = json.dumps(expected, indent=1) + "\n"
    (DATASETS / f"{name}.json").write_text(text)


def main(names: Sequence[str]) -> None:
    """Makes datasets, each in a directory of its own; all by default."""
    every = [*CASES, *(f"damaged_{name}" for name in DAMAGED)]
    for name in names or every:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                make(name)
            finally:
                os.chdir(ROOT)
        print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
