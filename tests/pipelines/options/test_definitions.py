"""One set of options: commands, pipelines, templates and documents agree.

Covers: pipelines/commands/template.py, pipelines/options/conversion_jobs.py,
pipelines/options/generated_files.py.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import pathlib
import re
import subprocess

import click
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from google.cloud.dataflow_v1beta3.types import TemplateMetadata
from google.protobuf import json_format

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.errors import GristmillError
from gristmill.pipelines.beam_graphs import graph_of
from gristmill.pipelines.commands.beam_arguments import split_arguments
from gristmill.pipelines.commands.main import find_command
from gristmill.pipelines.commands.template import command_line
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.definitions import (
    PIPELINES,
    ConvertOptions,
    LaunchOptions,
    options_of,
    template_options,
)
from gristmill.pipelines.options.generated_files import (
    generated_files,
    metadata,
    table,
)
from gristmill.transforms.index_arrayrecords import IndexArrayRecords
from gristmill.transforms.indexing.index_shard import plan_index
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions

ROOT = pathlib.Path(__file__).parents[3]
REQUIRED = {
    "convert": {"input": ("gs://a/b",), "output": "gs://a/c"},
    "index": {"files": ("gs://a/b*",)},
    "verify": {"dataset": "gs://a/b"},
}


def given_to(pipeline: str, *arguments: str) -> click.Context:
    """Parses a command line as the command does, without running it."""
    places = [
        str(v[0] if isinstance(v, tuple) else v) for v in REQUIRED[pipeline].values()
    ]
    command = find_command(pipeline)
    return command.make_context(pipeline, [*places, *arguments])


# Every value is tried on the command line and on the template's regular expression.
GOOD = {
    ("convert", "input"): [
        "gs://b/x",
        "gs://b/a/*.tfrecord",
        "gs://b/{a,b}".replace(",", ";"),
        "gs://b/x-?????-of-00100,gs://other_bucket/y [1]",
    ],
    ("convert", "output"): [
        "gs://b/x",
        "gs://b",
        "gs://b/with space/c4",
        "gs://b/ü/c4",
    ],
    ("convert", "name"): ["c4", "a-b", "A_1.0+x", "0", "_x", "my.set-2"],
    ("convert", "split"): ["train", "test_2", "a-b", "2024"],
    ("convert", "num_shards"): ["1", "8", "100000", "007"],
    ("convert", "shard_size"): [
        "256MiB",
        "1.5GB",
        "4096",
        "1 GiB",
        "10b",
        "1tib",
        "2kB",
    ],
    ("convert", "records_per_shard"): ["1", "1000000"],
    ("convert", "group_size"): ["1", "16", "1048576"],
    ("convert", "compression"): [
        *("zstd", "zstd:3", "zstd:-5", "zstd:22", "brotli:11", "brotli"),
        *("snappy", "uncompressed"),
    ],
    ("convert", "map"): ["module:function", "a.b_c.d:E.f"],
    ("convert", "on_corrupt"): ["fail", "quarantine"],
    ("convert", "max_corrupt"): ["0", "100"],
    ("convert", "check"): ["records", "sample"],
    ("index", "files"): ["gs://b/x*", "gs://b/x,gs://b/y"],
    ("index", "name"): ["c4"],
    ("index", "split"): ["train"],
    ("verify", "dataset"): ["gs://b/x"],
    ("verify", "report"): ["gs://b/report.json"],
}
BAD = {
    ("convert", "input"): ["", "local/file", "gs://", "gs://b/x,", "gs://b/x,/tmp/y"],
    ("convert", "output"): ["", "out", "s3://b/x", "gs:/b/x", "gs://b/x,gs://b/y"],
    ("convert", "name"): ["", "a/b", "a--b", "-a", "a-", "a b", "ü"],
    ("convert", "split"): ["", "a/b", "a.b", "a--b", "tr ain"],
    ("convert", "num_shards"): ["", "0", "-1", "1.5", "many", "1e3"],
    ("convert", "shard_size"): ["", "much", "1 XB", "-1MB", "1.MB", "1ib", "1 M B"],
    ("convert", "records_per_shard"): ["", "0", "-3", "x"],
    ("convert", "group_size"): ["", "0", "-1", "x"],
    ("convert", "compression"): ["", "lzma", "zstd:", "zstd:x", "snappy:1", "ZSTD"],
    ("convert", "map"): ["", "module", ":function", "module:"],
    ("convert", "on_corrupt"): ["", "skip", "Fail"],
    ("convert", "max_corrupt"): ["", "-1", "few"],
    ("convert", "check"): ["", "all", "recordsample"],
    ("index", "files"): ["", "here/*"],
    ("index", "name"): ["", "a/b"],
    ("index", "split"): ["", "a/b"],
    ("verify", "dataset"): ["", "here"],
    ("verify", "report"): ["", "report.json", "gs://b/a,gs://b/b"],
}


def pairs(values: dict[tuple[str, str], list[str]]) -> list[tuple[str, str, str]]:
    return [(*key, value) for key, found in values.items() for value in found]


def matches(pipeline: str, name: str, value: str) -> bool:
    """Tells whether the template takes a value, by the rules of egrep."""
    parameters = {p["name"]: p for p in metadata(pipeline)["parameters"]}
    (regex,) = parameters[name]["regexes"]
    found = subprocess.run(
        ["grep", "--extended-regexp", "--quiet", regex],
        input=value + "\n",
        text=True,
        env={"LC_ALL": "C.UTF-8"},
        check=False,
    )
    assert found.returncode in (0, 1)
    assert (found.returncode == 0) == bool(re.fullmatch(regex, value))
    return found.returncode == 0


def taken(pipeline: str, name: str, value: str) -> bool:
    """Tells whether the command takes a value."""
    option = {o.name: o for o in options_of(PIPELINES[pipeline])}[name]
    given = dict(REQUIRED[pipeline])
    if option.required:
        given[name] = tuple(value.split(",")) if option.kind == "paths" else value
    else:
        try:
            context = given_to(pipeline, option.flag, value)
        except click.ClickException:
            return False
        given[name] = context.params[name]
    options = PIPELINES[pipeline](**given)
    try:
        if isinstance(options, ConvertOptions):
            conversion_of(options)
    except GristmillError:
        return False
    return True


@pytest.fixture(scope="module", autouse=True)
def no_cloud():
    """No option may need the network to be judged; a missing bucket is none's fault."""
    from tests.support.gcs_server import GcsServer

    with (
        GcsServer("a", "b", "other_bucket") as server,
        pytest.MonkeyPatch.context() as p,
    ):
        p.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield


@pytest.mark.parametrize(("pipeline", "name", "value"), pairs(GOOD))
def test_template_and_command_take_good_values(pipeline, name, value):
    assert taken(pipeline, name, value)
    assert matches(pipeline, name, value)


@pytest.mark.parametrize(("pipeline", "name", "value"), pairs(BAD))
def test_template_refuses_bad_values(pipeline, name, value):
    assert not matches(pipeline, name, value)
    option = {o.name: o for o in options_of(PIPELINES[pipeline])}[name]
    paths = (option.regex or "").startswith("gs://")
    # Local paths are good ones on the command line; names are judged with the files.
    if not paths and pipeline == "convert" and value:
        assert not taken(pipeline, name, value)


def test_every_parameter_was_tried():
    for pipeline in PIPELINES:
        for option in template_options(pipeline):
            if option.kind != "flag":
                assert (pipeline, option.name) in GOOD
                assert (pipeline, option.name) in BAD
            else:
                assert matches(pipeline, option.name, "true")
                assert matches(pipeline, option.name, "false")
                assert not matches(pipeline, option.name, "yes")


def test_defaults_are_those_of_what_the_options_make():
    job = conversion_of(ConvertOptions(input=("gs://a/b",), output="gs://a/c")).jobs[0]
    default = ConversionJob(inputs=("gs://a/b",), output="gs://a/c", name="c")
    assert job == default
    assert (job.plan, job.writer) == (PlanOptions(), WriterOptions())
    shown = {option.name: option.shown for option in options_of(ConvertOptions)}
    assert (shown["split"], shown["shard_size"]) == (default.split, "256MiB")
    assert default.plan.value == 256 << 20


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_command_has_the_options_and_their_defaults(pipeline):
    context = given_to(pipeline)
    described = [*options_of(PIPELINES[pipeline]), *options_of(LaunchOptions)]
    for option in described:
        if not option.required:
            assert context.params[option.name] == option.default
    beside = {"as_json", "workers", "inputs", "output", "dataset", "files"}
    assert set(context.params) - beside == {
        option.name for option in described if not option.required
    }


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"name": "n"}, "name", "n"),
        ({"split": "test"}, "split", "test"),
        ({"map": "a:b"}, "map", "a:b"),
        ({"on_corrupt": "quarantine"}, "on_corrupt", "quarantine"),
        ({"max_corrupt": 3}, "max_corrupt", 3),
        ({"check": "sample"}, "check", "sample"),
        ({"group_size": 4}, "writer", WriterOptions(group_size=4)),
        ({"compression": "snappy"}, "writer", WriterOptions(compression="snappy")),
        ({"match_shards": True}, "plan", PlanOptions(kind="match_shards", value=None)),
        ({"num_shards": 7}, "plan", PlanOptions(kind="num_shards", value=7)),
        ({"shard_size": "1kB"}, "plan", PlanOptions(kind="shard_bytes", value=1000)),
        (
            {"records_per_shard": 9},
            "plan",
            PlanOptions(kind="records_per_shard", value=9),
        ),
    ],
)
def test_every_option_reaches_the_job_and_the_graph(given, field, value):
    options = ConvertOptions(**REQUIRED["convert"], **given)
    graph = graph_of(options)
    assert getattr(graph.jobs[0], field) == value
    assert not graph.prepared


def test_overwrite_reaches_the_graphs():
    for overwrite in (False, True):
        options = ConvertOptions(**REQUIRED["convert"], overwrite=overwrite)
        assert graph_of(options).overwrite is overwrite


def test_index_takes_what_its_transform_takes():
    names = {field.name for field in dataclasses.fields(IndexArrayRecords)}
    assert names == {option.name for option in options_of(PIPELINES["index"])}
    planned = set(inspect.signature(plan_index).parameters) - {"patterns"}
    assert planned == names - {"files"}


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_metadata_is_what_the_service_reads(pipeline):
    text = (ROOT / "deploy" / "templates" / f"{pipeline}.json").read_text()
    parsed = json_format.Parse(text, TemplateMetadata.pb()())
    options = {option.name: option for option in template_options(pipeline)}
    assert [parameter.name for parameter in parsed.parameters] == list(options)
    kinds = TemplateMetadata.pb().DESCRIPTOR.fields_by_name["parameters"].message_type
    enum = kinds.fields_by_name["param_type"].enum_type.values_by_name
    for parameter in parsed.parameters:
        option = options[parameter.name]
        assert parameter.is_optional != option.required
        assert parameter.help_text.startswith(option.help)
        assert re.fullmatch("[a-z_]+", parameter.name)
        default = {None: "", False: "false"}.get(option.default, str(option.default))
        assert parameter.default_value == default
        values = [choice.value for choice in parameter.enum_options]
        assert values == list(option.choices)
        assert (parameter.param_type == enum["BOOLEAN"].number) == (
            option.kind == "flag"
        )
    wrong = json.loads(text) | {"parametres": []}
    with pytest.raises(json_format.ParseError, match="no field named"):
        json_format.Parse(json.dumps(wrong), TemplateMetadata.pb()())


def test_documents_are_made_of_the_options():
    stale = [
        str(path)
        for path, text in generated_files(ROOT).items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run python -m gristmill.pipelines.options.generated_files"
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for kind in (*PIPELINES.values(), LaunchOptions):
        assert table(options_of(kind)) in text


def test_no_parameter_has_a_name_of_beams():
    known = PipelineOptions([]).get_all_options()
    for pipeline in PIPELINES:
        assert not {o.name for o in template_options(pipeline)} & known.keys()


@pytest.mark.parametrize(
    ("arguments", "ours", "beams"),
    [
        ("a b", "a b", ""),
        ("a --project p b", "a b", "--project p"),
        ("a b --temp-location=gs://x", "a b", "--temp_location=gs://x"),
        ("a b --num-shards 3 --num_workers 4", "a b --num-shards 3", "--num_workers 4"),
        # --name and --map have values of their own, whatever they look like.
        ("--name --project a b", "--name --project a b", ""),
        ("a --no_auth b", "a b", "--no_auth"),
        (
            "a b --experiments x --experiments=y",
            "a b",
            "--experiments x --experiments=y",
        ),
        ("a b --nonsense 1", "a b --nonsense 1", ""),
        ("a b --overwrite --streaming", "a b --overwrite", "--streaming"),
    ],
)
def test_options_of_beam_are_told_from_ours(arguments, ours, beams):
    command = find_command("convert")
    found = split_arguments(command, ["convert", *arguments.split()])
    assert found == (["convert", *ours.split()], beams.split())


@pytest.mark.parametrize(
    ("pipeline", "arguments", "expected"),
    [
        (
            "convert",
            "--input=gs://a/1,gs://a/2 --output=gs://b/c --num_shards=8 "
            "--runner=DataflowRunner --template_location=gs://t --labels={}",
            "convert --num-shards=8 --runner=DataflowRunner gs://a/1 gs://a/2 gs://b/c "
            "-- --template_location=gs://t --labels={} --sdk_container_image=image",
        ),
        (
            "convert",
            "--output gs://b/c --input gs://a/1 --match_shards --overwrite=true "
            "--cross_region=false --sdk_container_image=mine",
            "convert --match-shards --overwrite --runner=DataflowRunner gs://a/1 "
            "gs://b/c -- --sdk_container_image=mine",
        ),
        (
            "verify",
            "--dataset=gs://a/b --quick=true --report=gs://a/r --runner FnApiRunner",
            "verify --quick --report=gs://a/r --runner=FnApiRunner gs://a/b -- "
            "--sdk_container_image=image",
        ),
        (
            "index",
            "--files=gs://a/b* --split=train --cross_region=true",
            "index --split=train --cross-region --runner=DataflowRunner gs://a/b* -- "
            "--sdk_container_image=image",
        ),
    ],
)
def test_a_launchers_arguments_become_a_command_line(pipeline, arguments, expected):
    found = command_line(pipeline, arguments.split(), image="image")
    assert found == expected.split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--input=gs://a/b", "parameter output is not given"),
        ("--input= --output=gs://a/b", "parameter input has no value"),
        ("--input=gs://a/b --output=gs://a/c --overwrite=yes", "is not a boolean"),
    ],
)
def test_a_launchers_wrong_arguments_are_named(arguments, message):
    with pytest.raises(GristmillError, match=message):
        command_line("convert", arguments.split())
