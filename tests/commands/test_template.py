"""A launcher's arguments, as a command line."""

import os
import re
import subprocess
import sys

import pytest
from google.cloud.dataflow_v1beta3.types import TemplateMetadata
from google.protobuf import json_format

from gristmill.dataset import GristmillError
from gristmill.pipelines.commands.template import (
    TEMPLATES,
    command_line,
    metadata_files,
    parameters_of,
    pipeline_of,
)
from tests.support.distributions import ROOT

# A launcher's arguments, and the command line that they become.
LINES = """\
--input=gs://a/1,gs://a/2 --output=gs://b/c --num_shards=8 --runner=DataflowRunner \
--template_location=gs://t --labels={}
convert --num-shards=8 --runner=DataflowRunner gs://a/1 gs://a/2 gs://b/c \
-- --template_location=gs://t --labels={} --sdk_container_image=image

--output gs://b/c --input gs://a/1 --match_shards --overwrite=true \
--cross_region=false --sdk_container_image=mine
convert --match-shards --overwrite --runner=DataflowRunner gs://a/1 \
gs://b/c -- --sdk_container_image=mine

--input=gs://a/1 --output=gs://b/c --length=512 --eos=</s> --fast=true
pack --length=512 --eos=</s> --fast --runner=DataflowRunner gs://a/1 \
gs://b/c -- --sdk_container_image=image

--dataset=gs://a/b --quick=true --report=gs://a/r --runner FnApiRunner
verify --quick --report=gs://a/r --runner=FnApiRunner gs://a/b -- \
--sdk_container_image=image

--files=gs://a/b* --split=train --cross_region=true
index --split=train --cross-region --runner=DataflowRunner gs://a/b* -- \
--sdk_container_image=image
"""
# What a launcher says wrongly, and what is said of it.
WRONG = """\
--runner=DataflowRunner | not those of one template | got: none of these
--dataset=gs://a/b --files=gs://a/c | convert: input, output | got: dataset, files
--length=8 --input=gs://a/b --dataset=gs://a/c | got: dataset, input, length
--input= --output=gs://a/b | parameter input has no value
--input=gs://a/b --output=gs://a/c --overwrite=yes | is not a boolean
--input=--overwrite,gs://x/y --output=gs://a/c | '--overwrite'
--input=gs://a/b,-h --output=gs://a/c | input would be taken for an option
--input=gs://a/b --output=-- | output would be taken for an option
"""


@pytest.mark.parametrize("pair", LINES.split("\n\n"))
def test_a_launchers_arguments_become_a_command_line(pair):
    given, expected = (line.split() for line in pair.strip().splitlines())
    pipeline = pipeline_of(given)
    assert command_line(pipeline, given, image="image") == expected


@pytest.mark.parametrize("line", WRONG.splitlines())
def test_a_launchers_wrong_arguments_are_named(line):
    given, *said = line.split(" | ")
    with pytest.raises(GristmillError) as error:
        command_line(pipeline_of(given.split()), given.split())
    text = re.sub(r" +", " ", str(error.value))
    assert [one for one in said if one not in text] == []


@pytest.mark.parametrize(
    ("pipeline", "lacks"), [("convert", "output"), ("pack", "length")]
)
def test_a_parameter_that_is_missing_is_named(pipeline, lacks):
    given = {"input": "gs://a/b", "output": "gs://a/c"}
    given.pop(lacks, None)
    with pytest.raises(GristmillError, match=f"parameter {lacks} is not given"):
        command_line(pipeline, [f"--{name}={value}" for name, value in given.items()])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(("user", "expected"), [("nobody", "nobody"), (None, "root")])
def test_what_the_launcher_starts_does_not_stay_root(user, expected):
    code = (
        "import os, pwd; from gristmill.pipelines.commands.template import leave_root;"
        "leave_root(); print(pwd.getpwuid(os.getuid())[0], len(os.getgroups()));"
        "os.seteuid(0) if os.getuid() else None"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **({"GRISTMILL_USER": user} if user else {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.split()[0] == expected, done.stderr
    # Nor can it become root again.
    assert ("PermissionError" in done.stderr) == (user is not None)


@pytest.mark.parametrize("template", TEMPLATES)
def test_metadata_is_what_the_service_reads(template):
    path = ROOT / "deploy" / "templates" / f"{template}.json"
    again = "run python -m gristmill.pipelines.commands.template"
    assert metadata_files(ROOT)[path] == path.read_text("utf-8"), again
    parsed = json_format.Parse(path.read_text(), TemplateMetadata.pb()())
    options = parameters_of(template)
    assert [parameter.name for parameter in parsed.parameters] == list(options)
    for parameter in parsed.parameters:
        option = options[parameter.name]
        assert parameter.help_text.startswith(getattr(option, "help", "") or "")
        assert re.fullmatch("[a-z_]+", parameter.name)
        values = [choice.value for choice in parameter.enum_options]
        assert values == [*getattr(option.type, "choices", ())]
        (pattern,) = parameter.regexes
        if parameter.default_value:
            assert parameter.is_optional or parameter.name == "length"
            assert re.fullmatch(pattern, parameter.default_value)
        if parameter.name in ("input", "output", "files", "dataset", "report"):
            assert parameter.param_type != 0
            assert re.fullmatch(pattern, "gs://data/c4/part-*")
            assert not re.fullmatch(pattern, "data/c4")
