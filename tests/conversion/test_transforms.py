"""What Beam, its pages and a program see of transforms: types, options, results."""

from __future__ import annotations

import dataclasses
import pathlib
import re
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

from gristmill import loader
from gristmill.dataset import (
    GristmillError,
    InputError,
    Manifest,
    PackedCounts,
    Writer,
    WriterOptions,
    open_manifest,
)
from gristmill.transforms import (
    ChatOptions,
    ConversionJob,
    ConversionResult,
    ConvertFiles,
    Finding,
    IndexArrayRecords,
    PackOptions,
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


def job(**options: Any) -> ConversionJob:
    return ConversionJob(
        **{"inputs": ("in",), "output": "out", "name": "out"} | options
    )


class TestTypes:
    @pytest.mark.parametrize(
        ("make", "gives"),
        [
            (lambda: ReadTFRecords("in"), bytes),
            (lambda: ReadTFRecords("in", with_source=True), SourceRecord),
            (lambda: ReadArrayRecords("in"), bytes),
            (lambda: ReadArrayRecords("in", with_source=True), SourceRecord),
            (lambda: ReadRecords("in"), bytes),
            (lambda: ReadRecords("in", with_source=True), SourceRecord),
            (lambda: ConvertFiles(jobs=(job(),)), ConversionResult),
            (lambda: IndexArrayRecords(files="in"), Manifest),
            (lambda: VerifyDataset("in"), VerifyResult),
        ],
    )
    def test_of_transforms_that_begin_a_pipeline(self, make, gives):
        assert (beam.Pipeline() | make()).element_type == gives
        patterns = beam.Pipeline() | beam.Create(["in"])
        with pytest.raises(InputError, match="takes no PCollection") as caught:
            patterns | make()
        assert "PCollection[Create" in str(caught.value.got)

    @pytest.mark.parametrize(
        ("elements", "keyed", "taken"),
        [
            ([b"a"], False, True),
            ([(1, b"a")], True, True),
            (
                [(True, b"a"), (np.int64(1), b"a"), ("x", b"a"), (b"x", b"a")],
                True,
                True,
            ),
            *((elements, False, False) for elements in (["a"], [1], [(1, b"a")])),
            *((elements, True, False) for elements in ([b"a"], [(1, "a")])),
            ([(1.5, b"a")], True, False),
        ],
    )
    def test_of_elements_that_are_written(self, elements, keyed, taken):
        records, write = beam.Create(elements), WriteArrayRecords("out", keyed=keyed)
        if taken:
            assert (beam.Pipeline() | records | write).element_type == WriteResult
            return
        with pytest.raises(TypeCheckError, match="at WriteArrayRecords: expected"):
            beam.Pipeline() | records | write

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "checks",
        [
            ["--runtime_type_check"],
            ["--performance_runtime_type_check", "--type_check_additional=all"],
        ],
    )
    def test_hold_where_the_pipeline_runs(self, tmp_path, checks):
        place, out = tmp_path / "in", tmp_path / "out"
        place.write_bytes(frames_of([b"a", b"b"]))
        for chain, count in (
            ([ReadRecords(place, with_source=True)], 2),
            ([beam.Create([str(place)]), ReadAllRecords()], 2),
            ([ReadTFRecords(place), WriteArrayRecords(out, num_shards=1)], 1),
            ([ReadArrayRecords(out)], 2),
            ([VerifyDataset(out)], 1),
            ([ConvertFiles(jobs=(job(inputs=(place,), output=tmp_path / "c"),))], 1),
        ):
            assert len(run(*chain, argv=checks)) == count

    @pytest.mark.slow
    def test_tagged_outputs_work_and_results_are_rows(self, tmp_path):
        def split(record: bytes):
            yield record if record < b"c" else beam.pvalue.TaggedOutput("test", record)

        out = tmp_path / "out"
        with beam.Pipeline() as pipeline:
            records = pipeline | beam.Create([b"a", b"b", b"c"])
            parts = records | beam.FlatMap(split).with_outputs("test", main="train")
            for name in ("train", "test"):
                write = WriteArrayRecords(out, split=name, num_shards=1)
                parts[name] | f"Write{name}" >> write
        assert sorted(run(ReadArrayRecords(out, split="train"))) == [b"a", b"b"]
        assert run(ReadArrayRecords(out, split="test")) == [b"c"]
        write = WriteArrayRecords(out, split="more", num_shards=1)
        rows = (beam.Select("split", "records"), beam.Map(tuple))
        assert run(beam.Create([b"d"]), write, *rows) == [("more", 1)]


TRANSFORMS: dict[type, dict[str, Any]] = {
    ReadRecords: {"inputs": "in"},
    ReadAllRecords: {},
    WriteArrayRecords: {"output": "out"},
    ConvertFiles: {"jobs": (job(),)},
    IndexArrayRecords: {"files": "in"},
    VerifyDataset: {"dataset": "in"},
}
OPTIONS = [
    *((ConversionJob, vars(job()), name) for name in ("inputs", "output")),
    *(
        (make, given, field.name)
        for make, given in TRANSFORMS.items()
        for field in dataclasses.fields(make)
    ),
]


@pytest.mark.parametrize(
    ("make", "given", "option"),
    OPTIONS,
    ids=[f"{o[0].__name__}-{o[2]}" for o in OPTIONS],
)
def test_no_option_may_be_known_later(make, given, option):
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


def pack(**options: Any) -> PackOptions:
    return PackOptions(**{"length": 8, **options})


def chat(**options: Any) -> ChatOptions:
    return ChatOptions(**{"template": "t", **options})


def read(path: pathlib.Path, split: str | None = None, **records: Any) -> None:
    run(ReadRecords(path, split=split, records=RecordOptions(**records)))


def convert(folder: pathlib.Path, **options: Any) -> None:
    options = {"inputs": (folder / "in",), "output": folder / "out"} | options
    run(ConvertFiles(jobs=(job(**options),)))


def convert_again(folder: pathlib.Path) -> None:
    convert(folder)
    convert(folder, map="os.path:basename")


NOTHING = beam.Pipeline
CALLS: list[tuple[str, Any]] = [
    ("`on_corrupt`", lambda _: job(on_corrupt="stop")),
    ("`name`", lambda _: job(name="a/b")),
    ("`split`", lambda _: job(split="a/b")),
    ("not the name of a function", lambda _: job(map=len)),
    ("not the name of a function", lambda _: job(map="lower")),
    ("`split`", lambda _: WriteArrayRecords("out", split="a/b")),
    ("needs a PCollection of records", lambda _: NOTHING() | WriteArrayRecords("o")),
    ("s3:// paths are not supported", lambda _: WriteArrayRecords("s3://b/out")),
    ("s3:// paths are not supported", lambda _: VerifyDataset("s3://b/d")),
    ("http:// paths are not supported", lambda _: ReadRecords("http://host/in")),
    *(
        ("_bytes is not a whole number", call)
        for value in ("5", 2.5, [5])
        for call in (
            lambda _, value=value: ReadTFRecords("in", range_bytes=value),
            lambda _, value=value: ReadAllRecords(range_bytes=value),
            lambda _, value=value: WriteArrayRecords("out", shard_bytes=value),
        )
    ),
    *(
        ("jobs are not conversions", lambda _, jobs=jobs: ConvertFiles(jobs=jobs))
        for jobs in (job(), "in", ["in"], (job(), None))
    ),
    ("`input_format`", lambda _: RecordOptions(input_format="avro")),
    ("`nulls`", lambda _: RecordOptions(nulls="keep")),
    ("`record`", lambda _: RecordOptions(record="rows")),
    ("`columns`", lambda _: RecordOptions(columns=("a", "a"))),
    ("`group_size`", lambda _: WriterOptions(group_size=0)),
    ("`compression`", lambda _: WriterOptions(compression="x")),
    ("`method`", lambda _: pack(method="first-fit")),
    ("`length` is out of range", lambda _: pack(length=1)),
    ("`length` is out of range", lambda _: pack(length=(1 << 24) + 1)),
    ("`rows`", lambda _: pack(rows="json")),
    ("`special_text`", lambda _: pack(special_text="x")),
    ("`accept`", lambda _: pack(accept="x")),
    ("`fast` has no effect without `tokenizer`", lambda _: pack(fast=True)),
    ("`vocabulary_size` has no", lambda _: pack(vocabulary_size=3, tokenizer="t.json")),
    ("`add_special_tokens` has no", lambda _: pack(add_special_tokens=True)),
    ("`chat` without a tokenizer", lambda _: pack(chat=chat())),
    ("`train`", lambda _: chat(train="x")),
    ("`train_without`", lambda _: chat(train_without="x")),
    ("`truncate_turns`", lambda _: chat(truncate_turns="x")),
    ("`date`", lambda _: chat(date="x")),
    ("`columns`", lambda folder: read(folder / "a.csv", columns=("zz",))),
    ("`record`", lambda folder: read(folder / "a.jsonl", record="column:a")),
    ("allow_empty_files", lambda folder: read(folder / "empty")),
    ("split", lambda folder: read(folder / "data", "nope")),
    ("`select`", lambda f: convert(f, records=RecordOptions(select="a > 1"))),
    ("`split`", lambda folder: convert(folder, inputs=(f"{folder}/c-*",))),
    ("`overwrite`", convert_again),
    ("split=NAME", lambda folder: loader.open(folder / "data", split="nope")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("calls")
    for name in ("in", "c-train.tfrecord", "c-test.tfrecord"):
        (made / name).write_bytes(frames_of([b"a", b"b"]))
    (made / "a.csv").write_text("a,b\n1,2\n")
    (made / "a.jsonl").write_text('{"a": 1}\n')
    (made / "empty").write_bytes(b"")
    with Writer(made / "data") as writer:
        writer.write(b"a")
    return made


@pytest.mark.parametrize(("name", "call"), CALLS)
def test_an_error_names_parameters_and_no_options(folder, name, call):
    with pytest.raises(GristmillError) as raised:
        call(folder)
    said = str(raised.value)
    assert name in said
    # But for those of a command that is named with them.
    assert "--" not in re.sub(r"gristmill [a-z-]+[^;,`]*", "", said)


SOURCES = [f"in/{n}" for n in range(9)]
TOKENS = RecordOptions(input_format="jsonl", columns=("text",))
PACKED = job(records=TOKENS, pack=pack(length=64, column="text"), map="module:function")


def shown(transform: Any) -> dict[str, Any]:
    """Returns label and value of all items, as a runner gets them."""
    return {item.label: item.value for item in DisplayData.create_from(transform).items}


@pytest.mark.parametrize(
    ("transform", "values"),
    [
        (
            ConvertFiles(jobs=(PACKED,), tfds_directory="in", overwrite=True),
            {
                **{"Input train": "in", "Map": "module:function"},
                **{"Pack": "length=64", "Plan train": f"shard_bytes={256 << 20}"},
                "Records": "input_format=jsonl, columns=('text',)",
            },
        ),
        (IndexArrayRecords(files="in", name="n", split="s"), {}),
        (ReadRecords("in", split="s", records=TOKENS), {}),
        (ReadAllRecords(records=TOKENS), {}),
        (ReadArrayRecords("in", split="s"), {}),
        (WriteArrayRecords("a/b", num_shards=3, shard_bytes=9), {"Name": "b"}),
        (VerifyDataset("in"), {}),
        (
            ReadTFRecords(SOURCES, with_source=True),
            {
                **{"Inputs": "in/0, in/1, in/2 and 6 more", "With source": True},
                **{"Range bytes": 64 << 20, "Records": "input_format=tfrecord"},
            },
        ),
    ],
    ids=lambda given: type(given).__name__,
)
def test_all_fields_that_are_set_are_shown(transform, values):
    found = shown(transform)
    assert found == found | values
    for field in dataclasses.fields(transform):
        value = getattr(transform, field.name)
        if value is not None and field.name != "jobs":
            assert field.name.replace("_", " ").capitalize() in found


FINDING = Finding("a\udcff-00000", "wrong", "1", "2")
FOUND = VerifyResult(
    *("d", 3, None, None, (FINDING,), ("left",), 1, 2, PackedCounts(documents=5))
)


def test_results_come_back(tmp_path):
    """As a coder of their own encodes them, with which they can be keys."""
    manifest = open_manifest(dataset_of(tmp_path, [b"a", b"b", b"c"]))
    for result in (
        *(manifest, ConversionResult(manifest, ("train",)), FOUND),
        WriteResult("o", "train", 1, 2, 3, 4, True),
    ):
        coder = registry.get_coder(type(result))
        assert coder.is_deterministic()
        data = coder.encode(result)
        assert not data.startswith(b"\x80")  # As a pickle does.
        back = coder.decode(data)
        assert (back, type(back)) == (result, type(result))
        assert coder.encode(back) == data


def test_other_languages_read_the_result_of_a_write():
    schema = named_tuple_to_schema(WriteResult)
    kinds = {field.name: field.type.atomic_type for field in schema.fields}
    assert kinds == {
        **dict.fromkeys(("output", "split"), schema_pb2.STRING),
        **dict.fromkeys(("shards", "records", "raw_bytes"), schema_pb2.INT64),
        **{"file_bytes": schema_pb2.INT64, "committed_before": schema_pb2.BOOLEAN},
    }
