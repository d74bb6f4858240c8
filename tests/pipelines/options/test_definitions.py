"""Values of options: what commands and templates take."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess

import click
import pytest

from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.options.conversations import ConversationOptions
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.definitions import PIPELINES, template_options
from gristmill.pipelines.options.generated_files import metadata
from gristmill.pipelines.options.option import options_of
from gristmill.transforms.beam.index_arrayrecords import IndexArrayRecords
from gristmill.transforms.indexing.plan_index import plan_index
from tests.support.options import REQUIRED, given_to

pytestmark = pytest.mark.usefixtures("no_cloud")

# Every value is tried on the command line and on the template's regular expression.
GOOD = {
    ("convert", "input"): [
        "gs://b/x",
        "gs://b/a/*.tfrecord",
        "gs://b/{a,b}".replace(",", ";"),
        "gs://b/x-?????-of-00100,gs://other_bucket/y [1]",
    ],
    ("convert", "input_format"): ["auto", "tfrecord"],
    ("convert", "columns"): ["text", "text,url", "a.b,c d"],
    ("convert", "record"): ["example", "line", "column:text"],
    ("convert", "nulls"): ["fail", "skip"],
    ("convert", "unique"): ["text", "record", "normalised:body"],
    ("convert", "select"): ["score > 0.5", "language in ('de', 'fr')"],
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
    ("convert", "input_format"): ["", "avro", "TFRecord"],
    ("convert", "columns"): ["", ",", "a,", "a,,b"],
    ("convert", "record"): ["", "column", "column:", "lines"],
    ("convert", "nulls"): ["", "Skip", "drop"],
    ("convert", "unique"): ["", "texts", "record:a", "text:"],
    ("convert", "select"): [""],
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
GOOD |= {("pack", name): GOOD[kind, name] for kind, name in GOOD if kind == "convert"}
BAD |= {("pack", name): BAD[kind, name] for kind, name in BAD if kind == "convert"}
GOOD |= {
    ("pack", "tokenizer"): ["gs://m/tokenizer.json", "my.module:encode"],
    ("pack", "column"): ["text", "-", "a b"],
    ("pack", "vocabulary_size"): ["1", "65536"],
    ("pack", "length"): ["2", "2048"],
    ("pack", "pack"): ["best-fit", "concat", "none"],
    ("pack", "bos"): ["<s>", "0"],
    ("pack", "eos"): ["</s>", "<|end|>"],
    ("pack", "rows"): ["packed", "example"],
    ("pack", "template"): ["gs://m/chat.jinja", "tokenizer_config.json"],
    ("pack", "train"): ["assistant", "last", "all", "user,assistant"],
    ("pack", "train_without"): ["thinking", "thinking,tools"],
    ("pack", "train_end_of_turn"): ["yes", "no"],
    ("pack", "special_in_content"): ["token", "text", "set-aside", "refuse"],
    ("pack", "truncate_turns"): ["yes", "no"],
    ("pack", "unusable"): ["set-aside", "refuse"],
    ("pack", "tools_column"): ["tools", "a b"],
    ("pack", "weight_column"): ["weight", "score"],
    ("pack", "date"): ["2026-11-24"],
}
BAD |= {
    ("pack", "tokenizer"): ["", "gs://m/a,gs://m/b"],
    ("pack", "column"): [""],
    ("pack", "vocabulary_size"): ["", "0", "-1", "many"],
    ("pack", "length"): ["", "0", "-2", "x"],
    ("pack", "pack"): ["", "best", "Concat"],
    ("pack", "bos"): [""],
    ("pack", "eos"): [""],
    ("pack", "rows"): ["", "rows"],
    ("pack", "template"): ["", "a,b"],
    ("pack", "train"): ["", "Assistant", "user,"],
    ("pack", "train_without"): ["", "tools,"],
    ("pack", "train_end_of_turn"): ["", "maybe"],
    ("pack", "special_in_content"): ["", "special"],
    ("pack", "truncate_turns"): ["", "true"],
    ("pack", "unusable"): ["", "skip"],
    ("pack", "tools_column"): [""],
    ("pack", "weight_column"): [""],
    ("pack", "date"): ["", "24.11.2026", "2026-1-1"],
}
CONVERSATIONS = {option.name for option in options_of(ConversationOptions)}


FILES = ("tokenizer", "template")


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
    if pipeline == "pack" and name in CONVERSATIONS:
        beside = {"chat": True, "template": "chat.jinja", "tokenizer": "t.json"}
        given = beside | given
    options = PIPELINES[pipeline](**given)
    try:
        if isinstance(options, ConvertOptions):
            conversion_of(options)
    except GristmillError:
        return False
    return True


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
    if not paths and pipeline in ("convert", "pack") and value and name not in FILES:
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


def test_index_takes_what_its_transform_takes():
    names = {field.name for field in dataclasses.fields(IndexArrayRecords)}
    assert names == {option.name for option in options_of(PIPELINES["index"])}
    planned = set(inspect.signature(plan_index).parameters) - {"patterns"}
    assert planned == names - {"files", "keep_replaced"}  # For the commit.
