"""Runners by name, and options of Beam, told from ours."""

import subprocess
import sys

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import DirectRunner

from gristmill.dataset import InputError
from gristmill.pipelines.beam.pipeline_options import (
    checked_options,
    find_runner,
    split_arguments,
)
from gristmill.pipelines.commands.main import find_command

FN_API = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"


class Own(DirectRunner):
    """A runner that somebody wrote."""


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (f"FnApiRunner fnapirunner fnapi {FN_API}", FN_API),
        (f"DaskRunner dask {DASK}", DASK),
        (f"{__name__}.Own", f"{__name__}.Own"),
    ],
)
def test_short_and_full_names(names, path):
    for name in names.split():
        assert find_runner(name)[0] == path


@pytest.mark.slow
def test_a_package_that_the_runner_needs_is_named():
    script = (
        "import sys\n"
        "sys.modules['dask'] = None\n"  # As if it were not installed.
        "from gristmill.pipelines.beam.pipeline_options import find_runner\n"
        "find_runner('dask')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert "MissingPackageError: the package dask is not installed" in done.stderr
    assert "pip install 'dask[distributed]'" in done.stderr


# A command line; those of its words that are ours; and the options of Beam.
LINES = """\
a --project p b | a b | --project p
a b --temp-location=gs://x | a b | --temp_location=gs://x
a b --num-shards 3 --num_workers 4 | a b --num-shards 3 | --num_workers 4
--name --project a b | --name --project a b |
a --no_auth b | a b | --no_auth
a --dry_run b --dry-run | a b | --dry_run --dry_run
a b --experiments x | a b | --experiments x
a b --nonsense 1 | a b --nonsense 1 |
a b --overwrite --streaming | a b --overwrite | --streaming
"""


@pytest.mark.parametrize("line", LINES.splitlines())
def test_options_of_beam_are_told_from_ours(line):
    """`--name` and `--map` have values of their own, whatever they look like."""
    given, ours, beams = (part.split() for part in line.split("|"))
    found = split_arguments(find_command("convert"), ["convert", *given])
    assert found == (["convert", *ours], beams)


def test_options_that_others_know(capfd):
    """A job service has its own, a launcher may say what Beam does not know."""
    options = ["--job_endpoint=localhost:1", "--of_the_service=1"]
    assert checked_options("PortableRunner", options)[1:] == options
    launched = ["--template_location=gs://x/y", "--launcher_machine_type=n1"]
    more = [*launched, "--quite_new_thing=1"]
    assert checked_options("DataflowRunner", more)[1:] == more
    with pytest.raises(InputError, match="would ignore"):
        checked_options("DataflowRunner", [*launched, "--disk_size=200"])
    given = ["--no_auth=true", "--use_public_ips=false", "--streaming=false", "--a=b"]
    options = checked_options("PortableRunner", given)
    assert options[1:] == ["--no_auth", "--no_use_public_ips", "--a=b"]
    with pytest.raises(InputError, match="invalid int value: 'two'"):
        checked_options("FnApiRunner", ["--direct_num_workers=two"])
    assert capfd.readouterr() == ("", "")  # Beam would print hundreds of lines.


@pytest.mark.parametrize("given", ["--dry_run", "--dry_run=True", "--dry_run=true"])
def test_a_dry_run_is_a_flag(given):
    options = checked_options("DataflowRunner", [given])
    assert PipelineOptions(options).get_all_options()["dry_run"]
    assert checked_options("DataflowRunner", options[1:]) == options
    off = checked_options("FnApiRunner", ["--dry_run=false"])
    assert not PipelineOptions(off).get_all_options()["dry_run"]
