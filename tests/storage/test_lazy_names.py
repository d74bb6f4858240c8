"""Names that are imported when they are first used, and packages that they need."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gristmill.dataset.base.errors import MissingPackageError


def python(*lines: str, without: str) -> subprocess.CompletedProcess[str]:
    """Runs lines of Python as if a package was not installed."""
    script = "\n".join(["import sys", f"sys.modules[{without!r}] = None", *lines])
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        ("from gristmill.transforms import ReadTFRecords", "apache_beam", "beam"),
        (
            "from gristmill.pipelines import convert_tf_to_arrayrecord_gcs",
            "apache_beam",
            "beam",
        ),
        ("from gristmill.loader import to_jax", "grain", "loader"),
    ],
)
def test_the_extra_is_named(line, package, extra):
    done = python(line, without=package)
    last = done.stderr.splitlines()[-2:]
    assert last[0].endswith(
        f"MissingPackageError: the package {package} is not installed"
    )
    assert last[1] == f"  to do:    pip install 'gristmill[{extra}]'"
    # Code that does without it catches what Python raises.
    guarded = f"try:\n    {line}\nexcept ModuleNotFoundError:\n    print('without')"
    assert python(guarded, without=package).stdout == "without\n"


@pytest.mark.slow
def test_other_missing_modules_stay_as_they_are():
    line = "from gristmill.transforms import ReadTFRecords"
    done = python(line, without="numpy")
    assert done.stderr.splitlines()[-1].startswith("ModuleNotFoundError")
    assert MissingPackageError.of(ModuleNotFoundError("x", name="numpy")) is None
    assert MissingPackageError.of(ModuleNotFoundError("x")) is None
