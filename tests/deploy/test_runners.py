"""Runners by name, and what is said where one cannot be used."""

from __future__ import annotations

import subprocess
import sys

import pytest
from apache_beam.runners.direct.direct_runner import DirectRunner

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.beam.pipeline_options import find_runner

FN_API = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("FnApiRunner", FN_API),
        ("fnapirunner", FN_API),
        ("fnapi", FN_API),
        (FN_API, FN_API),
        ("DaskRunner", DASK),
        ("dask", DASK),
        (DASK, DASK),
        (f"{__name__}.Own", f"{__name__}.Own"),
    ],
)
def test_short_and_full_names(name, path):
    assert find_runner(name)[0] == path


class Own(DirectRunner):
    """A runner that somebody wrote."""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nope", "DaskRunner, DataflowRunner, DirectRunner, FlinkRunner, FnApiRunner"),
        ("", "unknown Beam runner"),
        ("apache_beam.runners.nope.Nope", "No module named 'apache_beam.runners.nope'"),
        ("apache_beam.runners.runner.Nope", "has no attribute 'Nope'"),
        ("os.getcwd", "this is not a Beam runner"),
    ],
)
def test_a_name_that_is_none(name, message):
    with pytest.raises(InputError, match="Beam runner") as caught:
        find_runner(name)
    assert message in str(caught.value)


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
