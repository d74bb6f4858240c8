"""What Beam and its pages see of the transforms: types, options, fields, results."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
from typing import Any

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import registry
from apache_beam.options.value_provider import RuntimeValueProvider, StaticValueProvider
from apache_beam.portability.api import schema_pb2
from apache_beam.transforms.display import DisplayData
from apache_beam.typehints.decorators import TypeCheckError
from apache_beam.typehints.schemas import named_tuple_to_schema

from gristmill.dataset import InputError, Manifest, PackedCounts, open_manifest
from gristmill.transforms import (
    ConversionJob,
    ConversionResult,
    ConvertFiles,
    Finding,
    IndexArrayRecords,
    PackOptions,
    PlanOptions,
    ReadAllRecords,
    ReadArrayRecords,
    ReadRecords,
    ReadTFRecords,
    RecordOptions,
    SourceRecord,
    VerifyDataset,
    VerifyResult,
    WriteArrayRecords,
    WriteResult,
)
from tests.support.conversion import dataset_of
from tests.support.pipelines import run
from tests.support.records import frames_of

JOB = ConversionJob(inputs=("in",), output="out", name="out")
STARTING = [
    (lambda: ReadTFRecords("in"), bytes),
    (lambda: ReadTFRecords("in", with_source=True), SourceRecord),
    (lambda: ReadArrayRecords("in"), bytes),
    (lambda: ReadRecords("in"), bytes),
    (lambda: ReadRecords("in", with_source=True), SourceRecord),
    (lambda: ReadArrayRecords("in", with_source=True), SourceRecord),
    (lambda: ConvertFiles(jobs=(JOB,)), ConversionResult),
    (lambda: IndexArrayRecords(files="in"), Manifest),
    (lambda: VerifyDataset("in"), VerifyResult),
]


@pytest.mark.parametrize(("make", "gives"), STARTING)
def test_results_are_typed(make, gives) -> None:
    pipeline = beam.Pipeline()
    assert (pipeline | make()).element_type == gives


@pytest.mark.parametrize(("make", "_"), STARTING)
def test_a_collection_where_none_belongs(make, _) -> None:
    patterns = beam.Pipeline() | beam.Create(["in"])
    with pytest.raises(InputError, match="takes no PCollection") as caught:
        patterns | make()
    assert "PCollection[Create" in str(caught.value.got)
    assert caught.value.cure


@pytest.mark.parametrize(
    ("elements", "keyed"),
    [
        ([b"a"], False),
        ([(1, b"a")], True),
        ([(True, b"a"), (np.int64(1), b"a"), ("text", b"a"), (b"key", b"a")], True),
    ],
)
def test_records_are_accepted(elements: list[Any], keyed: bool) -> None:
    records = beam.Pipeline() | beam.Create(elements)
    written = records | WriteArrayRecords("out", keyed=keyed)
    assert written.element_type == WriteResult


@pytest.mark.parametrize(
    ("elements", "keyed"),
    [
        (["a"], False),
        ([1], False),
        ([(1, b"a")], False),
        ([{"text": b"a"}], False),
        ([b"a"], True),
        ([(1, "a")], True),
        ([(1.5, b"a")], True),
    ],
)
def test_elements_of_other_types_are_refused(elements: list[Any], keyed: bool) -> None:
    records = beam.Pipeline() | beam.Create(elements)
    with pytest.raises(TypeCheckError, match="at WriteArrayRecords: expected"):
        records | WriteArrayRecords("out", keyed=keyed)


def test_a_write_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="needs a PCollection of records"):
        beam.Pipeline() | WriteArrayRecords("out")


@pytest.mark.parametrize(
    "given",
    [
        StaticValueProvider(str, "in"),
        RuntimeValueProvider("in", str, "default"),
        beam.Pipeline() | beam.Create(["in"]),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        ReadTFRecords,
        ReadArrayRecords,
        lambda given: ConversionJob(inputs=given, output="out", name="out"),
        lambda given: ConversionJob(
            inputs=(pathlib.Path("in"),), output=given, name=""
        ),
    ],
)
def test_values_of_later_are_refused(make, given) -> None:
    with pytest.raises(InputError, match="is not a path") as caught:
        make(given)
    assert "no ValueProvider" in str(caught.value)


TRANSFORMS = {
    ReadRecords: {"inputs": "in"},
    ReadAllRecords: {},
    WriteArrayRecords: {"output": "out"},
    ConvertFiles: {"jobs": (JOB,)},
    IndexArrayRecords: {"files": "in"},
    VerifyDataset: {"dataset": "in"},
}
OPTIONS = [
    pytest.param(make, given, field.name, id=f"{make.__name__}-{field.name}")
    for make, given in TRANSFORMS.items()
    for field in dataclasses.fields(make)
]


@pytest.mark.parametrize(("make", "given", "option"), OPTIONS)
def test_no_option_may_be_known_later(make, given, option: str) -> None:
    """Of all transforms, whatever options they will have."""
    later = [
        StaticValueProvider(str, "in"),
        RuntimeValueProvider("in", str, "default"),
        beam.Pipeline() | beam.Create(["in"]),
    ]
    for value in (*later, later[:1]):
        with pytest.raises(InputError, match=r"not (a path|known yet)") as caught:
            make(**{**given, option: value})
        assert "no ValueProvider" in str(caught.value)
        assert caught.value.cure


@pytest.mark.parametrize("value", ["5", 2.5, [5]])
def test_numbers_are_numbers(value: Any) -> None:
    for make in (
        lambda: ReadTFRecords("in", range_bytes=value),
        lambda: ReadAllRecords(range_bytes=value),
        lambda: WriteArrayRecords("out", shard_bytes=value),
    ):
        with pytest.raises(InputError, match="_bytes is not a whole number"):
            make()
    ReadTFRecords("in", range_bytes=np.int64(5))


@pytest.mark.parametrize("jobs", [JOB, "in", ["in"], (JOB, None)])
def test_a_conversion_takes_jobs(jobs: Any) -> None:
    with pytest.raises(InputError, match="jobs are not conversions"):
        ConvertFiles(jobs=jobs)
    with pytest.raises(InputError, match="no conversion given"):
        ConvertFiles(jobs=())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: WriteArrayRecords("s3://b/out"), "s3:// paths are not supported"),
        (lambda: ReadRecords("http://host/in"), "http:// paths are not supported"),
        (lambda: VerifyDataset("s3://b/d"), "s3:// paths are not supported"),
        (lambda: job(map=len), "not the name of a function"),
        (lambda: job(map="lower"), "not the name of a function"),
        (lambda: PlanOptions(kind="num_shards"), "num_shards needs a positive number"),
    ],
)
def test_what_a_constructor_can_see_is_refused_there(make, said) -> None:
    with pytest.raises(InputError, match=said):
        make()


def job(**options: Any) -> ConversionJob:
    return ConversionJob(inputs=("in",), output="out", name="out", **options)


def test_the_default_plan_is_a_size() -> None:
    assert PlanOptions() == PlanOptions(kind="shard_bytes", value=256 << 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    "checks",
    [
        ["--runtime_type_check"],
        ["--performance_runtime_type_check", "--type_check_additional=all"],
    ],
)
def test_types_hold_where_the_pipeline_runs(tmp_path: pathlib.Path, checks) -> None:
    (tmp_path / "in").write_bytes(frames_of([b"a", b"b"]))
    done: list[Any] = []
    for name, chain in {
        "read": [ReadRecords(tmp_path / "in", with_source=True)],
        "all": [beam.Create([str(tmp_path / "in")]), ReadAllRecords()],
        "write": [
            ReadTFRecords(tmp_path / "in"),
            WriteArrayRecords(tmp_path / "out", num_shards=1),
        ],
        "again": [ReadArrayRecords(tmp_path / "out")],
        "verify": [VerifyDataset(tmp_path / "out")],
        "convert": [
            ConvertFiles(
                jobs=(
                    ConversionJob(
                        inputs=(tmp_path / "in",), output=tmp_path / "c", name="c"
                    ),
                )
            )
        ],
    }.items():
        done.append((name, len(run(*chain, argv=checks))))
    assert done == [
        *(("read", 2), ("all", 2), ("write", 1), ("again", 2), ("verify", 1)),
        ("convert", 1),
    ]


def test_tagged_outputs_work_as_they_come(tmp_path: pathlib.Path) -> None:
    def split(record: bytes):
        if record < b"c":
            yield record
        else:
            yield beam.pvalue.TaggedOutput("test", record)

    out = tmp_path / "out"
    with beam.Pipeline() as pipeline:
        parts = (
            pipeline
            | beam.Create([b"a", b"b", b"c"])
            | beam.FlatMap(split).with_outputs("test", main="train")
        )
        for name in ("train", "test"):
            write = WriteArrayRecords(out, split=name, num_shards=1)
            parts[name] | f"Write{name}" >> write
    found = {name: run(ReadArrayRecords(out, split=name)) for name in ("train", "test")}
    assert {name: sorted(records) for name, records in found.items()} == {
        "train": [b"a", b"b"],
        "test": [b"c"],
    }


SOURCES = [f"in/{n}" for n in range(9)]
TOKENS = RecordOptions(input_format="jsonl", columns=("text",))
PACKED = ConversionJob(
    inputs=("in",),
    output="out",
    name="c4",
    records=TOKENS,
    pack=PackOptions(length=64, column="text"),
    map="module:function",
)


def shown(transform: Any) -> dict[str, Any]:
    """Returns label and value of all items, as a runner gets them."""
    return {item.label: item.value for item in DisplayData.create_from(transform).items}


@pytest.mark.parametrize(
    "transform",
    [
        ConvertFiles(jobs=(PACKED,), tfds_directory="in", overwrite=True),
        IndexArrayRecords(files="in", name="n", split="s"),
        *(ReadRecords("in", split="s", records=TOKENS), ReadAllRecords(records=TOKENS)),
        *(ReadTFRecords("in"), ReadArrayRecords("in", split="s")),
        WriteArrayRecords("out", num_shards=3, shard_bytes=9, keyed=True),
        VerifyDataset("in"),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_all_fields_that_are_set_are_shown(transform: Any) -> None:
    found = shown(transform)
    for field in dataclasses.fields(transform):
        value = getattr(transform, field.name)
        if value is not None and field.name != "jobs":
            assert field.name.replace("_", " ").capitalize() in found


def test_values_are_short() -> None:
    found = shown(ReadTFRecords(SOURCES, with_source=True))
    assert found["Inputs"] == "in/0, in/1, in/2 and 6 more"
    assert (found["With source"], found["Range bytes"]) == (True, 64 << 20)
    assert found["Records"] == "input_format=tfrecord"
    assert "Split" not in found
    found = shown(ConvertFiles(jobs=(PACKED,)))
    assert (found["Input train"], found["Map"]) == ("in", "module:function")
    assert found["Plan train"] == f"shard_bytes={256 << 20}"
    assert found["Records"] == "input_format=jsonl, columns=('text',)"
    assert found["Pack"] == "length=64"
    assert shown(WriteArrayRecords("a/b"))["Name"] == "b"


# Their modules register the coders.
REGISTERED = (ConvertFiles, IndexArrayRecords, VerifyDataset, WriteArrayRecords)
FINDING = Finding("a\udcff-00000", "wrong", "1", "2")
FOUND = VerifyResult(
    *("d", 3, None, None, (FINDING,), ("left",), 1, 2, PackedCounts(documents=5))
)


def test_results_come_back(tmp_path: pathlib.Path) -> None:
    manifest = open_manifest(dataset_of(tmp_path, [b"a", b"b", b"c"]))
    for kind, result in {
        Manifest: manifest,
        ConversionResult: ConversionResult(manifest, ("train",)),
        VerifyResult: FOUND,
        WriteResult: WriteResult("o", "train", 1, 2, 3, 4, True),
    }.items():
        coder = registry.get_coder(kind)
        assert coder.is_deterministic()
        data = coder.encode(result)
        assert not data.startswith(b"\x80")  # As a pickle does.
        back = coder.decode(data)
        assert (back, type(back)) == (result, type(result))
        assert coder.encode(back) == data
        assert coder == registry.get_coder(kind)


def test_other_languages_read_the_result_of_a_write() -> None:
    schema = named_tuple_to_schema(WriteResult)
    kinds = {field.name: field.type.atomic_type for field in schema.fields}
    texts, counts = ("output", "split"), ("shards", "records", "raw_bytes")
    assert {kinds[name] for name in texts} == {schema_pb2.STRING}
    assert {kinds[name] for name in (*counts, "file_bytes")} == {schema_pb2.INT64}
    assert kinds["committed_before"] == schema_pb2.BOOLEAN


@pytest.mark.slow
def test_results_are_keys_and_rows(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").write_bytes(frames_of([b"a", b"b"]))
    out = tmp_path / "out"
    write = WriteArrayRecords(out, num_shards=1)
    rows = (beam.Select("records", "split"), beam.Map(tuple))
    assert run(ReadTFRecords(tmp_path / "in"), write, *rows) == [(2, "train")]
    job = ConversionJob(inputs=(tmp_path / "in",), output=tmp_path / "c", name="c")
    shutil.copytree(out, tmp_path / "found", ignore=shutil.ignore_patterns("*.json"))
    count = (beam.Map(lambda one: (one, 1)), beam.GroupByKey(), beam.Keys())
    for chain, kind in (
        ([ReadTFRecords(tmp_path / "in"), write], WriteResult),
        ([ConvertFiles(jobs=(job,))], ConversionResult),
        ([VerifyDataset(out)], VerifyResult),
        ([IndexArrayRecords(files=f"{tmp_path}/found/*array_record*")], Manifest),
    ):
        (found,) = run(*chain, *count)
        assert type(found) is kind
