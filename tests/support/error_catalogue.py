"""Errors as users meet them: what provokes each, with real files and the real parts.

`python -m docs.make_errors` writes docs/reference/errors.md of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import importlib
import json
import os
import pathlib
import re
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from gristmill import loader
from gristmill.dataset import Writer, WriterOptions, encode_example
from gristmill.dataset.base import errors
from gristmill.pipelines.columns.attach import attach_tables
from gristmill.pipelines.columns.row_keys import JoinBy
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.removal.named_records import asked_records
from gristmill.pipelines.removal.run_removal import check_found


@dataclasses.dataclass(frozen=True)
class Case:
    """An error, and how it comes about.

    Attributes:
        kind: Its class.
        cause: What leads to it, for the page.
        provoke: Makes it happen in an empty folder.
        normal: Pattern of what differs from run to run, and what to write for it.
    """

    kind: type[errors.GristmillError]
    cause: str
    provoke: Callable[[pathlib.Path], object]
    normal: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The name of the function that provokes it."""
        return self.provoke.__name__

    def error(self, folder: pathlib.Path) -> errors.GristmillError:
        """Provokes the error and returns it."""
        try:
            self.provoke(folder)
        except errors.GristmillError as error:
            return error
        raise AssertionError(f"{self.name} provokes no error")

    def message(self, folder: pathlib.Path) -> str:
        """Provokes the error and returns its message, with `/data` for the folder."""
        text = str(self.error(folder)).replace(str(folder), "/data")
        for pattern, replacement in self.normal:
            text = re.sub(pattern, replacement, text)
        return text


CASES: list[Case] = []

# Steps within: another error, of which they tell, is what users get.
WITHIN = {
    errors.CorruptStreamError: "passed on as an error of the format, with the place of "
    "the record",
    errors.FalseStartError: "the file is read from its beginning then",
    errors.FastTokenizerDiffersError: "the shard is made again without the fast path",
    errors.RowError: "passed on with the file and the row",
    errors.TransposedChunkError: "the official reader reads the file then",
}


def case(
    kind: type[errors.GristmillError], cause: str, *normal: tuple[str, str]
) -> Callable[[Callable[[pathlib.Path], object]], Callable[[pathlib.Path], object]]:
    """Puts a function that provokes an error into the catalogue."""

    def added(
        provoke: Callable[[pathlib.Path], object],
    ) -> Callable[[pathlib.Path], object]:
        CASES.append(Case(kind, " ".join(cause.split()), provoke, normal))
        return provoke

    return added


# --- What the cases share.


def raw(folder: pathlib.Path, count: int = 20) -> pathlib.Path:
    """Writes a TFRecord file, and returns it."""
    from gristmill.dataset import encode_frame

    path = folder / "raw" / "c4-00000.tfrecord"
    path.parent.mkdir(parents=True, exist_ok=True)
    examples = [encode_example({"id": i, "text": f"text {i}"}) for i in range(count)]
    path.write_bytes(b"".join(map(encode_frame, examples)))
    return path


def converted(folder: pathlib.Path, **options: Any) -> str:
    """Converts the files of `raw`, or others, and returns the dataset."""
    if "input" not in options:
        if not (folder / "raw").exists():
            raw(folder)
        options["input"] = (f"{folder}/raw/*",)
    output = options.pop("output", f"{folder}/c4")
    said = ConvertOptions(output=output, **options)
    found = conversion_of(said)
    convert(found.jobs, workers=1, features=found.features, overwrite=found.overwrite)
    return str(output)


def flip(path: pathlib.Path, at: int) -> None:
    """Changes a byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def change_json(path: pathlib.Path, change: Callable[[Any], None]) -> None:
    """Changes a file of JSON."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def shard(folder: pathlib.Path) -> pathlib.Path:
    """Returns the first shard of the dataset `c4`."""
    return min((folder / "c4").glob("*.array_record*"))


@contextlib.contextmanager
def bucket(folder: pathlib.Path, *names: str) -> Iterator[None]:
    """Serves a bucket, with files of a folder in it."""
    from tests.support.gcs_server import GcsServer

    with GcsServer("bucket") as server:
        for name in names:
            server.objects.put("bucket", name, (folder / name).read_bytes())
        with mock.patch.dict(os.environ, {"STORAGE_EMULATOR_HOST": server.url}):
            yield


@contextlib.contextmanager
def importable(folder: pathlib.Path, source: str) -> Iterator[str]:
    """Makes a module of a source importable, and gives its name."""
    (folder / "clean.py").write_text(source)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield "clean"
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("clean", None)


def lines(folder: pathlib.Path, name: str, text: str) -> None:
    """Writes a file of text among the inputs."""
    path = folder / "raw" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def batches(folder: pathlib.Path, **options: Any) -> loader.GlobalBatches:
    """Returns batches of the dataset of `raw`."""
    dataset = loader.open(converted(folder))
    return loader.global_batches(dataset, **{"batch_size": 4, **options})


def alone(feeding: loader.GlobalBatches, **options: Any) -> loader.Feed:
    """Returns the feed of the only host."""
    return feeding.feed(process_index=0, process_count=1, **options)


# --- Inputs and options.


@case(errors.InputError, "The path is wrong, or a pattern matches nothing.")
def no_input(folder: pathlib.Path) -> None:
    converted(folder, input=(f"{folder}/raw/*.tfrecord",))


@case(errors.InputError, "A file is of a format that is not read, such as an archive.")
def unknown_format(folder: pathlib.Path) -> None:
    lines(folder, "a.zip", "PK\x03\x04" + "\x00" * 100)
    converted(folder)


@case(
    errors.InputError,
    "The names of the files say that they are of several splits: one conversion "
    "makes one split.",
)
def several_splits(folder: pathlib.Path) -> None:
    for split in ("train", "test"):
        raw(folder).rename(folder / "raw" / f"c4-{split}-00000.tfrecord")
    converted(folder)


@case(errors.InputError, "The output lies where the inputs are searched.")
def output_among_inputs(folder: pathlib.Path) -> None:
    raw(folder)
    converted(folder, output=f"{folder}/raw")


@case(errors.InputError, "Two options say how many shards to make.")
def two_plans(folder: pathlib.Path) -> None:
    converted(folder, num_shards=2, records_per_shard=10)


@case(errors.InputError, "An option is for formats that have columns.")
def no_columns(folder: pathlib.Path) -> None:
    converted(folder, columns="text")


@case(errors.InputError, "The name of a compression is wrong.")
def unknown_compression(folder: pathlib.Path) -> None:
    WriterOptions(compression="lz4")


@case(errors.InputError, "A field has values of several types.")
def mixed_types(folder: pathlib.Path) -> None:
    lines(folder, "a.jsonl", '{"a": 1}\n{"a": "x"}\n')
    converted(folder)


@case(errors.InputError, "The module of `--map` is not importable.")
def no_map_function(folder: pathlib.Path) -> None:
    converted(folder, map="no_such_module:function")


@case(errors.InputError, "The name of a split is wrong.")
def no_such_split(folder: pathlib.Path) -> None:
    loader.open(converted(folder), split="test")


@case(errors.InputError, "A dataset has several splits, and none is named.")
def which_split(folder: pathlib.Path) -> None:
    converted(folder)
    loader.open(converted(folder, split="test"))


@case(
    errors.InputError,
    "pathlib joined the slashes of a `gs://` path, or one was forgotten.",
)
def slash_lost(folder: pathlib.Path) -> None:
    loader.open("gs:/bucket/c4")


@case(errors.InputError, "The path is in a storage that is not read.")
def other_storage(folder: pathlib.Path) -> None:
    loader.open("s3://bucket/c4")


@case(errors.InputError, "An argument of the loader is out of range.")
def no_rows(folder: pathlib.Path) -> None:
    batches(folder, batch_size=0)


@case(errors.InputError, "A writer was given something else than bytes.")
def not_bytes(folder: pathlib.Path) -> None:
    with Writer(f"{folder}/c4") as writer:
        writer.write("text")  # type: ignore[arg-type]


@case(errors.InputError, "A writer is used outside of its `with` statement.")
def not_begun(folder: pathlib.Path) -> None:
    Writer(f"{folder}/c4").write(b"record")


# --- Damaged inputs.


@case(errors.CorruptFrameError, "Bytes of a TFRecord file have changed.")
def damaged_frame(folder: pathlib.Path) -> None:
    flip(raw(folder), 100)
    converted(folder)


@case(
    errors.CorruptFrameError, "The program that wrote the file, or a copy, ended early."
)
def cut_tfrecord(folder: pathlib.Path) -> None:
    path = raw(folder)
    path.write_bytes(path.read_bytes()[:-5])
    converted(folder)


@case(
    errors.CorruptFrameError,
    "A compressed file was cut, or bytes of it have changed.",
    (r"offset \d+", "offset 459"),
)
def cut_gzip(folder: pathlib.Path) -> None:
    path = raw(folder)
    data = gzip.compress(path.read_bytes(), mtime=0)
    path.write_bytes(data[: len(data) // 2])
    converted(folder)


@case(errors.CorruptRecordError, "A line is not JSON.", (r"Expecting.*", "..."))
def damaged_line(folder: pathlib.Path) -> None:
    lines(folder, "a.jsonl", '{"a": 1}\n{"a": 2\n')
    converted(folder)


@case(
    errors.CorruptRecordError,
    "A value is not of the type that was given for its column.",
)
def wrong_type(folder: pathlib.Path) -> None:
    lines(folder, "a.csv", "a,b\n1,2\nx,3\n")
    converted(folder, columns="a:int")


@case(
    errors.CorruptRecordError,
    "A Parquet file was cut: its footer, which comes last, is not there.",
    (r"got:.*", "got:      b'arro' at the end of 5,721 bytes"),
)
def cut_parquet(folder: pathlib.Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    path = folder / "raw" / "a.parquet"
    path.parent.mkdir()
    pyarrow.parquet.write_table(pa.table({"a": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:-30])
    converted(folder)


@case(
    errors.CorruptInputError,
    "With `--on-corrupt quarantine`, more was damaged than is allowed.",
)
def too_much_damage(folder: pathlib.Path) -> None:
    path = raw(folder)
    for number in range(5):
        flip(path, 100 + 200 * number)
    converted(folder, on_corrupt="quarantine", max_corrupt=1)


# --- Functions of users.


@case(
    errors.UserFunctionError, "The `--map` function returned something else than bytes."
)
def map_returns_text(folder: pathlib.Path) -> None:
    source = "def f(record):\n    return record.hex()\n"
    with importable(folder, source) as name:
        converted(folder, map=f"{name}:f")


@case(errors.UserFunctionError, "The `--map` function raised an exception.")
def map_fails(folder: pathlib.Path) -> None:
    source = "def f(record):\n    raise KeyError('label')\n"
    with importable(folder, source) as name:
        converted(folder, map=f"{name}:f")


# --- Jobs.


@case(
    errors.JobChangedError,
    "The output has a split of other options or inputs, finished or not.",
)
def other_options(folder: pathlib.Path) -> None:
    converted(folder)
    converted(folder, num_shards=3)


@case(errors.JobChangedError, "A writer would write a split that is there already.")
def written_already(folder: pathlib.Path) -> None:
    with Writer(converted(folder)):
        pass


@case(
    errors.DataLossError,
    "A shard is missing when the dataset is to be committed. Nothing is committed.",
)
def shard_not_made(folder: pathlib.Path) -> None:
    from gristmill.transforms.conversion.commit_shards import commit_shards
    from gristmill.transforms.conversion.shard_tasks import make_shards, shard_tasks
    from tests.support.conversion import job_of, prepared_of

    raw(folder)
    job = job_of(f"{folder}/raw/*", folder / "c4", plan=("num_shards", 2))
    tasks = shard_tasks(prepared_of(job))
    made = [result for task in tasks for result in make_shards(task)]
    commit_shards([job], made[:1])


@case(
    errors.StorageChangedError,
    "An input was written again while it was converted.",
    (r"version \d+", "version 1795375263705120732"),
)
def input_changed(folder: pathlib.Path) -> None:
    _convert_after(folder, lambda path: path.write_bytes(path.read_bytes() * 2))


@case(errors.StorageMissingError, "An input was deleted while it was converted.")
def input_deleted(folder: pathlib.Path) -> None:
    _convert_after(folder, pathlib.Path.unlink)


def _convert_after(
    folder: pathlib.Path, change: Callable[[pathlib.Path], object]
) -> None:
    """Changes the input after it was planned, and makes the first shard."""
    from gristmill.transforms.conversion.convert_shard import convert_shard
    from tests.support.conversion import job_of, prepared_of

    path = raw(folder)
    prepared = prepared_of(job_of(f"{folder}/raw/*", folder / "c4"))
    change(path)
    convert_shard(prepared, 0)


@case(
    errors.WorkerDiedError,
    "Code in a worker process ended it, or the system did: most often there was not "
    "enough memory.",
    (r"process \d+", "process 4711"),
)
def worker_died(folder: pathlib.Path) -> None:
    from gristmill.pipelines.local.pool import map_unordered

    list(map_unordered(os._exit, [3], workers=2))


@case(errors.JobError, "A runner of Beam lacks an option, or cannot be reached.")
def runner_failed(folder: pathlib.Path) -> None:
    import apache_beam as beam

    from gristmill.pipelines.beam.run_pipeline import run_pipeline

    options = ["--runner=PortableRunner"]
    run_pipeline(beam.Create([1]), options, result_path=f"{folder}/result")


# --- Datasets.


@case(
    errors.NotADatasetError,
    "The path is wrong, or the conversion to it has not finished.",
)
def not_committed(folder: pathlib.Path) -> None:
    loader.open(f"{folder}/c4")


@case(errors.FormatVersionError, "A later version of gristmill wrote the dataset.")
def later_version(folder: pathlib.Path) -> None:
    dataset = converted(folder)
    later = {"format_version": 99}
    change_json(folder / "c4" / "dataset.json", lambda content: content.update(later))
    loader.open(dataset)


@case(errors.InvalidDatasetError, "Somebody has edited `dataset.json`.")
def wrong_counts(folder: pathlib.Path) -> None:
    dataset = converted(folder)
    change_json(
        folder / "c4" / "dataset.json",
        lambda content: content["splits"]["train"].update(records=5),
    )
    loader.open(dataset)


@case(
    errors.InvalidDatasetError,
    "Bytes of an index have changed.",
    (r"0x[0-9a-f]{8}", "0x7a586b49"),
)
def damaged_index(folder: pathlib.Path) -> None:
    dataset = converted(folder)
    flip(min((folder / "c4" / "index").iterdir()), 40)
    loader.open(dataset)[0]


@case(
    errors.ReplacedError,
    "The split was converted again with `--overwrite` while it was read.",
    (r"[0-9a-f]{64}", "5c1f..."),
    (r"gristmill [0-9.a-z]+", "gristmill 1.0"),
)
def replaced(folder: pathlib.Path) -> None:
    dataset = loader.open(converted(folder))
    change_json(
        folder / "c4" / "dataset.json",
        lambda content: (
            content["splits"]["train"].update(edition=2),
            content.update(format_version=3),
        ),
    )
    shard(folder).unlink()
    dataset.read([0])


@case(errors.CorruptShardError, "Bytes of a shard have changed.")
def damaged_shard(folder: pathlib.Path) -> None:
    # The same bytes with every version of a codec.
    dataset = converted(folder, compression="uncompressed")
    flip(shard(folder), 200)
    loader.open(dataset).read(range(20))


@case(errors.CorruptShardError, "A shard was cut, or written again.")
def cut_shard(folder: pathlib.Path) -> None:
    dataset = converted(folder)
    path = shard(folder)
    path.write_bytes(path.read_bytes()[:-100])
    loader.open(dataset)[0]


@case(
    errors.InputError,
    "An ArrayRecord file in a bucket has chunks of a kind that only the official "
    "reader decodes, which reads local files.",
)
def transposed(folder: pathlib.Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(f"{folder}/a.array_record", "group_size:4,transpose")
    for number in range(8):
        writer.write(encode_example({"id": number}))
    writer.close()
    with bucket(folder, "a.array_record"):
        loader.open("gs://bucket/a.array_record")[0]


# --- Reading and feeding.


@case(errors.InputError, "A list of records to remove names some that are not there.")
def not_to_remove(folder: pathlib.Path) -> None:
    asked = asked_records(converted(folder), ["3", "1000", "c4-00001.tfrecord@0"])
    check_found(asked, "unwanted.txt", allow_missing=False)


@case(errors.InputError, "A table has no rows for some records.")
def without_a_row(folder: pathlib.Path) -> None:
    (folder / "scores.jsonl").write_text('{"number": 0, "score": 0.5}\n')
    by = JoinBy(feature=None, key=("number",))
    attach_tables(converted(folder), [str(folder / "scores.jsonl")], by, workers=1)


@case(errors.OutOfRangeError, "There are fewer steps.")
def no_such_step(folder: pathlib.Path) -> None:
    batches(folder, epochs=1).indices(99)


@case(errors.RecordKeyError, "A sampler asks for a record that is not there.")
def no_such_record(folder: pathlib.Path) -> None:
    converted(folder)
    loader.ArrayRecordDataSource([str(shard(folder))])[99]


@case(errors.DecodeError, "A record does not have a feature that the decoder was told.")
def feature_missing(folder: pathlib.Path) -> None:
    decode = loader.ExampleDecoder({"label": loader.FixedFeature("int32")})
    with alone(batches(folder), decode=decode) as feed:
        next(feed)


@case(
    errors.StateMismatchError,
    "A state is of other data, another seed, or another shuffle.",
)
def other_state(folder: pathlib.Path) -> None:
    with alone(batches(folder)) as feed:
        state = feed.get_state()
    with alone(batches(folder, seed=1)) as feed:
        feed.set_state(state)


# --- The machine.


@case(errors.StorageError, "A part of the output's path is a file.")
def not_a_directory(folder: pathlib.Path) -> None:
    (folder / "c4").write_text("")
    converted(folder)


@case(errors.StorageError, "A file of a dataset was deleted.")
def shard_deleted(folder: pathlib.Path) -> None:
    dataset = converted(folder)
    shard(folder).unlink()
    loader.open(dataset)[0]


@case(errors.StorageError, "There is no bucket of this name.")
def no_bucket(folder: pathlib.Path) -> None:
    with bucket(folder):
        loader.open("gs://other/c4")


@case(errors.SystemLimitError, "The process may not have more memory.")
def no_memory(folder: pathlib.Path) -> None:
    from gristmill.dataset.base.system_limits import limits_named

    with limits_named():
        bytearray(1 << 62)


@case(errors.StorageError, "The process may not open more files.")
def too_many_files(folder: pathlib.Path) -> None:
    dataset = loader.open(converted(folder))
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
        dataset[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@case(errors.MissingPackageError, "An extra is not installed.")
def no_package(folder: pathlib.Path) -> None:
    from gristmill.dataset.base.lazy_names import packages_named

    with mock.patch.dict(sys.modules, {"prometheus_client": None}), packages_named():
        import prometheus_client  # noqa: F401
