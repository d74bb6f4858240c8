"""Options of Beam, told from ours."""

from __future__ import annotations

import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.beam.pipeline_options import (
    checked_options,
    split_arguments,
)
from gristmill.pipelines.commands.main import find_command


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
        ("a --dry_run b", "a b", "--dry_run"),
        ("a --dry-run b", "a b", "--dry_run"),
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


def test_options_that_beam_does_not_take(capfd):
    full = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"
    options = ["--direct_num_workers=2"]
    assert checked_options("FnApiRunner", options) == [full, *options]
    with pytest.raises(InputError, match="invalid int value: 'two'"):
        checked_options("FnApiRunner", ["--direct_num_workers=two"])
    with pytest.raises(InputError, match="unknown Beam runner"):
        checked_options("Nope", [])
    assert capfd.readouterr() == ("", "")  # Beam would print hundreds of lines.


@pytest.mark.parametrize("runner", ["DataflowRunner", "FnApiRunner", "dask"])
@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--max_workers=7", "--max_num_workers"),
        ("--disk_size=200", "--disk_size_gb"),
        ("--max-num-workers=7", "--max_num_workers"),
        ("--nonsense", None),
        ("7", None),
    ],
)
def test_options_that_beam_would_ignore(runner, option, meant):
    with pytest.raises(InputError, match="Beam would ignore this option") as raised:
        checked_options(runner, ["--no_auth", option])
    assert raised.value.got == option
    assert raised.value.expected == meant
    assert (meant or "check its name") in raised.value.cure


def test_a_job_service_has_options_of_its_own():
    options = ["--job_endpoint=localhost:1", "--of_the_service=1"]
    assert checked_options("PortableRunner", options)[1:] == options


def test_a_launcher_may_say_what_beam_does_not_know():
    launched = ["--template_location=gs://x/y", "--launcher_machine_type=n1"]
    more = [*launched, "--quite_new_thing=1"]
    assert checked_options("DataflowRunner", more)[1:] == more
    with pytest.raises(InputError, match="would ignore"):
        checked_options("DataflowRunner", [*launched, "--disk_size=200"])


def test_flags_may_have_values():
    given = ["--no_auth=true", "--use_public_ips=false", "--streaming=false", "--a=b"]
    options = checked_options("PortableRunner", given)
    assert options[1:] == ["--no_auth", "--no_use_public_ips", "--a=b"]


@pytest.mark.parametrize("given", ["--dry_run", "--dry_run=True", "--dry_run=true"])
def test_a_dry_run_is_a_flag(given):
    options = checked_options("DataflowRunner", [given])
    assert PipelineOptions(options).get_all_options()["dry_run"]
    assert checked_options("DataflowRunner", options[1:]) == options
    # Other runners would run the pipeline.
    with pytest.raises(InputError, match="only applies to Dataflow"):
        checked_options("FnApiRunner", [given])
    off = checked_options("FnApiRunner", ["--dry_run=false"])
    assert not PipelineOptions(off).get_all_options()["dry_run"]
