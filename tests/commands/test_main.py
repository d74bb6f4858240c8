"""The command line as a whole: which commands there are, and how they fail."""

from __future__ import annotations

import pytest

from gristmill.pipelines.commands.main import main
from tests.support.shell import succeeded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # Before anything is looked at: gs:// would ask for credentials.
        (["convert", "gs://x/y", "gs://z", "--runner", "Nope"], "FlinkRunner"),
        (["verify", "gs://z", "--runner=Nope"], "unknown Beam runner"),
        (["index", "x", "--runner", "FnApi", "--streaming=x"], "does not take these"),
    ],
)
def test_wrong_runners_and_options(arguments, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_version_and_help(tmp_path):
    assert succeeded("--version", cwd=tmp_path).startswith("gristmill ")
    assert "Exit codes" in succeeded("--help", cwd=tmp_path)
