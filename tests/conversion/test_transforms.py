"""What Beam, its pages and a program see of transforms: types, options, results."""

import dataclasses
import functools
import operator
import re

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.coders import registry
from apache_beam.options.value_provider import RuntimeValueProvider, StaticValueProvider
from apache_beam.portability.api import beam_runner_api_pb2, schema_pb2
from apache_beam.portability.common_urns import primitives
from apache_beam.runners.portability.fn_api_runner import translations
from apache_beam.transforms.display import DisplayData
from apache_beam.typehints.decorators import TypeCheckError
from apache_beam.typehints.schemas import named_tuple_to_schema

from gristmill import loader, transforms
from gristmill.dataset import (
    GristmillError,
    InputError,
    Manifest,
    PackedCounts,
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
from gristmill.transforms.beam.run_job import RunJob
from gristmill.transforms.columns.attach_job import ComputeJob
from gristmill.transforms.columns.duplicates import DuplicatesJob
from gristmill.transforms.removal.removal_job import RemovalJob
from tests.conversion.format_files import put
from tests.support.conversion import dataset_of
from tests.support.pipelines import run
from tests.support.records import frames_of
from tests.support.told import told


def job(**options):
    return ConversionJob(
        **{"inputs": ("in",), "output": "out", "name": "out"} | options
    )


class TestTypes:
    @pytest.mark.parametrize(
        ("make", "gives"),
        [
            (lambda: ReadTFRecords("in"), bytes),
            (lambda: ReadArrayRecords("in"), bytes),
            (lambda: ReadRecords("in", with_source=True), SourceRecord),
            (lambda: ConvertFiles(jobs=(job(),)), ConversionResult),
            (lambda: IndexArrayRecords(files="in"), Manifest),
            (lambda: VerifyDataset("in"), VerifyResult),
        ],
    )
    def test_of_transforms_that_begin_a_pipeline(self, make, gives):
        assert (beam.Pipeline() | make()).element_type == gives
        patterns = beam.Pipeline() | beam.Create(["in"])
        with told(InputError, "takes no PCollection", "PCollection[Create"):
            patterns | make()

    @pytest.mark.parametrize(
        ("elements", "keyed", "taken"),
        [
            ([b"a"], False, True),
            ([(True, b"a"), (np.int64(1), b"a")], True, True),
            ([("x", b"a"), (b"x", b"a")], True, True),
            *((elements, False, False) for elements in (["a"], [1], [(1, b"a")])),
            *((one, True, False) for one in ([b"a"], [(1, "a")], [(1.5, b"a")])),
        ],
    )
    def test_of_elements_that_are_written(self, elements, keyed, taken):
        records, write = beam.Create(elements), WriteArrayRecords("out", keyed=keyed)
        if taken:
            assert (beam.Pipeline() | records | write).element_type == WriteResult
            return
        with told(TypeCheckError, "at WriteArrayRecords: expected"):
            beam.Pipeline() | records | write

    @pytest.mark.slow
    def test_of_tagged_outputs(self, tmp_path):
        def split(record):
            yield record if record < b"c" else beam.pvalue.TaggedOutput("test", record)

        with beam.Pipeline() as pipeline:
            records = pipeline | beam.Create([b"a", b"b", b"c"])
            parts = records | beam.FlatMap(split).with_outputs("test", main="train")
            for name in ("train", "test"):
                write = WriteArrayRecords(tmp_path, split=name, num_shards=1)
                parts[name] | f"Write{name}" >> write
        assert sorted(run(ReadArrayRecords(tmp_path, split="train"))) == [b"a", b"b"]


# Their graphs, by the groups and the other stages that Beam fuses them to.

CONVERT = ConvertFiles(jobs=(job(),))
GRAPHS = {
    "convert": ([CONVERT], (4, 5)),
    "pack": ([ConvertFiles(jobs=(job(pack=PackOptions(length=64)),))], (4, 5)),
    "overwrite": ([dataclasses.replace(CONVERT, overwrite=True)], (4, 5)),
    "index": ([IndexArrayRecords(files="in")], (2, 3)),
    "verify": ([VerifyDataset("in")], (2, 3)),
    "quick": ([VerifyDataset("in", quick=True)], None),
    "remove": ([RunJob(RemovalJob("in", {}))], (2, 3)),
    "attach": ([RunJob(ComputeJob("in", "module:function"))], (2, 3)),
    "unique": ([RunJob(DuplicatesJob("in"))], (2, 3)),
    "read": ([ReadRecords("in")], (5, 6)),
    "read TFRecords": ([ReadTFRecords("in")], (3, 4)),
    "read ArrayRecords": ([ReadArrayRecords("in")], None),
    "read all": ([beam.Create(["in"]), ReadAllRecords()], None),
    "write": ([beam.Create([b""]), WriteArrayRecords("out", num_shards=3)], None),
    # It needs the number of shards, as a side input: one number.
    "by size": ([beam.Create([b""]), WriteArrayRecords("out", shard_bytes=9)], None),
}


def test_no_transform_is_left_out():
    public = [getattr(transforms, name) for name in transforms.__all__]
    here = {type(chain[-1]) for chain, _ in GRAPHS.values()} - {RunJob}
    assert here == {one for one in public if issubclass(one, beam.PTransform)}


@pytest.mark.parametrize("name", GRAPHS)
def test_shuffles_and_stages_are_few_and_nothing_is_sent_to_all(name):
    """No element, no side input is a list for all shards, which are a million."""
    chain, expected = GRAPHS[name]
    pipeline = beam.Pipeline()
    functools.reduce(operator.or_, chain, pipeline)
    proto = pipeline.to_runner_api()
    leaves = [n for n in proto.components.transforms.values() if not n.subtransforms]
    for node in leaves:
        # That of a `CombineGlobally` which keeps its default carries the whole result.
        assert "InjectDefault" not in node.unique_name
        if node.spec.urn == primitives.PAR_DO.urn:
            payload = beam_runner_api_pb2.ParDoPayload.FromString(node.spec.payload)
            assert not payload.side_inputs or name == "by size"
    groups, starts = primitives.GROUP_BY_KEY.urn, primitives.IMPULSE.urn
    _, fused = translations.create_and_optimize_stages(
        proto,
        phases=translations.standard_optimize_phases(),
        known_runner_urns=frozenset({groups, starts}),
    )
    kinds = [{one.spec.urn for one in stage.transforms} for stage in fused]
    found = (
        sum(groups in kind for kind in kinds),
        sum(not kind & {groups, starts} for kind in kinds),
    )
    assert expected in (None, found)


TRANSFORMS = {
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


read = functools.partial(ReadRecords, "in")
write = functools.partial(WriteArrayRecords, "out")
pack = functools.partial(PackOptions, length=8)
chat = functools.partial(ChatOptions, template="t")
# What is given, and what the error says; by default the first parameter's name.
REFUSED = [
    *((job, {name: "a/b"}, "") for name in ("on_corrupt", "name", "split")),
    *((job, {"map": one}, "not the name of a function") for one in (len, "lower")),
    *((write, {name: 0}, "") for name in ("num_shards", "shard_bytes")),
    (write, {"shard_bytes": 2.5}, "not a whole number"),
    *((write, {name: "a b"}, "") for name in ("split", "name")),
    (read, {"range_bytes": 0}, ""),
    (ReadAllRecords, {"range_bytes": 0}, ""),
    (read, {"records": RecordOptions(select="a > 0")}, "selects no records"),
    (ReadRecords, {"inputs": ()}, "no inputs given"),
    (ReadRecords, {"inputs": "a\udcff"}, "give a pattern"),
    (VerifyDataset, {"dataset": "a\udcff"}, "to do:    rename it"),
    (ReadRecords, {"inputs": "http://host/in"}, "http:// paths are not supported"),
    (WriteArrayRecords, {"output": ""}, "the path of the output is empty"),
    (WriteArrayRecords, {"output": "s3://b/out"}, "s3:// paths are not supported"),
    (VerifyDataset, {"dataset": "s3://b/d"}, "s3:// paths are not supported"),
    (ConvertFiles, {"jobs": ["in"]}, "jobs are not conversions"),
    (ConvertFiles, {"jobs": ()}, "no conversion given"),
    (ConvertFiles, {"jobs": (job(), job())}, "write the same split"),
    (ConvertFiles, {"jobs": (job(), job(name="x"))}, "must share output and name"),
    *((RecordOptions, {name: "x"}, "") for name in ("input_format", "nulls", "record")),
    *((RecordOptions, {"record": one}, "") for one in ("column:", "line:a")),
    *((RecordOptions, {"columns": one}, "") for one in (("a", ""), ("a", "a"))),
    (PlanOptions, {"kind": "num_shards"}, "num_shards"),
    (PlanOptions, {"kind": "num_shards", "value": 0}, "num_shards"),
    (PlanOptions, {"kind": "match_shards", "value": 3}, "match_shards"),
    (WriterOptions, {"group_size": 0}, ""),
    (WriterOptions, {"compression": "x"}, ""),
    *((pack, {"length": one}, "`length` is out of") for one in (1, (1 << 24) + 1)),
    *((pack, {name: "x"}, "") for name in ("method", "rows", "special_text", "accept")),
    (pack, {"fast": True}, "`fast` has no effect without `tokenizer`"),
    (pack, {"vocabulary_size": 3, "tokenizer": "t.json"}, "` has no effect"),
    (pack, {"add_special_tokens": True}, "` has no effect"),
    (pack, {"chat": chat()}, "`chat` without a tokenizer"),
    *((chat, {name: "x"}, "") for name in ("train", "train_without", "date")),
    (chat, {"truncate_turns": "x"}, ""),
]


def assert_names(error, what):
    """Asserts that it names a parameter, and no option of a command."""
    assert what in str(error)
    # But for those of a command that is named with them.
    assert "--" not in re.sub(r"gristmill [a-z-]+[^;,`]*", "", str(error))


@pytest.mark.parametrize(("make", "given", "said"), REFUSED)
def test_a_value_that_makes_no_sense_is_refused_at_once(make, given, said):
    with pytest.raises(GristmillError) as raised:
        make(**given)
    assert_names(raised.value, said or f"{next(iter(given))}")


@pytest.mark.parametrize(
    ("said", "make"),
    [
        ("`columns`", lambda f: ReadRecords(f / "a.csv", records=columns("zz"))),
        ("allow_empty_files", lambda f: ReadRecords(f / "empty")),
        ("split", lambda f: ReadRecords(f / "out", split="nope")),
        ("`split`", lambda f: convert(f, inputs=(f"{f}/c-*",))),
        ("`overwrite`", lambda f: convert(f, map="os.path:basename")),
        ("`split`", lambda f: loader.open(f / "out", split="nope")),
    ],
)
def test_an_error_of_a_run_names_parameters(tmp_path, said, make):
    dataset_of(tmp_path, [b"a"] * 3)
    frames = dict.fromkeys(("c-train.tfrecord", "c-test.tfrecord"), frames_of([b"a"]))
    put(tmp_path, {**frames, "a.csv": "a,b\n1,2\n", "empty": b""})
    with pytest.raises(GristmillError) as raised:
        run(make(tmp_path))
    assert_names(raised.value, said)
    if said == "`overwrite`":
        run(dataclasses.replace(make(tmp_path), overwrite=True))


def columns(*names):
    return RecordOptions(columns=names)


def convert(folder, **options):
    options = {"inputs": (folder / "train.tfrecord",), "name": "data"} | options
    return ConvertFiles(jobs=(job(output=folder / "out", **options),))


def test_nothing_is_written_before_the_run(tmp_path):
    pipeline = beam.Pipeline()
    pipeline | beam.Create([b"a"]) | WriteArrayRecords(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with told(InputError, "needs a PCollection of records"):
        pipeline | "Nothing" >> write()


TOKENS = RecordOptions(input_format="jsonl", columns=("text",))
PACKED = job(records=TOKENS, pack=pack(length=64, column="text"), map="module:function")


def shown(transform):
    """Returns label and value of all items, as a runner gets them."""
    return {item.label: item.value for item in DisplayData.create_from(transform).items}


@pytest.mark.parametrize("make", TRANSFORMS)
def test_all_fields_that_are_set_are_shown(make):
    transform = make(**TRANSFORMS[make])
    if make in (ReadRecords, ReadAllRecords):
        transform.records = TOKENS
    for field in dataclasses.fields(transform):
        if getattr(transform, field.name) is not None and field.name != "jobs":
            assert field.name.replace("_", " ").capitalize() in shown(transform)


def test_what_is_shown():
    found = shown(ConvertFiles(jobs=(PACKED,), tfds_directory="in"))
    assert found == found | {
        **{"Input train": "in", "Map": "module:function", "Pack": "length=64"},
        "Plan train": f"shard_bytes={256 << 20}",
        "Records": "input_format=jsonl, columns=('text',)",
    }
    found = shown(ReadTFRecords([f"in/{n}" for n in range(9)], with_source=True))
    assert found == found | {
        **{"Inputs": "in/0, in/1, in/2 and 6 more", "With source": True},
        **{"Range bytes": 64 << 20, "Records": "input_format=tfrecord"},
    }
    assert shown(WriteArrayRecords("a/b"))["Name"] == "b"
    # A runner takes UTF-8, and a file's name is any bytes.
    packed = job(pack=pack(length=64, tokenizer="t\udcff"))
    found = shown(ConvertFiles(jobs=(packed,)))
    assert found["Pack"] == r"length=64, tokenizer=t\udcff"


def test_results_come_back(tmp_path):
    """As a coder of their own encodes them, with which they can be keys."""
    manifest = open_manifest(dataset_of(tmp_path, [b"a", b"b", b"c"]))
    findings, counts = (Finding("a\udcff-0", "x", "1", "2"),), PackedCounts(documents=5)
    for result in (
        *(manifest, ConversionResult(manifest, ("train",))),
        VerifyResult("d", 3, None, None, findings, ("left",), 1, 2, counts, 1),
        WriteResult("o", "train", 1, 2, 3, 4, True),
    ):
        coder = registry.get_coder(type(result))
        assert coder.is_deterministic()
        back = coder.decode(coder.encode(result))
        assert (back, type(back)) == (result, type(result))


def test_other_languages_read_the_result_of_a_write():
    schema = named_tuple_to_schema(WriteResult)
    kinds = {field.name: field.type.atomic_type for field in schema.fields}
    assert kinds == {
        **dict.fromkeys(("output", "split"), schema_pb2.STRING),
        **dict.fromkeys(("shards", "records", "raw_bytes"), schema_pb2.INT64),
        **{"file_bytes": schema_pb2.INT64, "committed_before": schema_pb2.BOOLEAN},
    }
