"""Conversions from and to a bucket that fails.

    python -m benchmarks.faults --markdown docs/performance/faults.md
    python -m benchmarks.faults --quick

Every row is a process of `gristmill convert` against the server of the tests, which
fails in one way. Where the conversion ends with an error, the same command is given
once more after the fault has passed. In the end the dataset must be the one that a
conversion without faults gives, bit for bit. The table is written between two marks in
the document.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import c4_like
from benchmarks.contest import write_between
from gristmill.dataset import Manifest
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.lookup import delete_all
from tests.support.gcs_process import GcsProcess

_MARKS = ("<!-- conversion: begin -->", "<!-- conversion: end -->")
_ALWAYS = 10**9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A way to fail, and what is to come of it.

    Attributes:
        name: What happens, for the table.
        faults: Of the server; see `tests.support.gcs_server.Fault`.
        settings: Settings of the server.
        error: The message that the user sees, as a regular expression; None if the
            conversion succeeds.
        message: What the client sees in an answer.
    """

    name: str
    faults: tuple[dict[str, Any], ...] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    error: str | None = None


def _fault(kind: str, operation: str = "", **options: Any) -> dict[str, Any]:
    return {"kind": kind, "operation": operation, **options}


_INPUT = "part-00001"
_SHARD = "array_record-0000"
SCENARIOS = (
    Scenario(name="nothing"),
    Scenario(
        name="for 2 s every request gets 503",
        faults=(_fault("503", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="for 2 s every request gets 429",
        faults=(_fault("429", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="for 2 s every connection is reset",
        faults=(_fault("reset", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="6 bodies are cut short, then the connection ends",
        faults=(_fault("cut", "media", times=6, skip=2),),
    ),
    Scenario(
        name="6 bodies are short, with a length to match",
        faults=(_fault("short", "media", times=6, skip=2),),
    ),
    Scenario(
        name="2 bodies stop in the middle",
        faults=(_fault("stall", "media", times=2, skip=3),),
    ),
    Scenario(
        name="2 bodies arrive at a byte a second",
        faults=(_fault("drip", "media", times=2, skip=3),),
    ),
    Scenario(
        name="every listing arrives at a byte a second, for good",
        faults=(_fault("drip", "list", times=_ALWAYS),),
        error="no success in .* no complete answer in",
    ),
    Scenario(
        name="for 2 s a proxy answers with a page of its own",
        faults=(_fault("other", times=_ALWAYS, skip=30, lasts_seconds=2),),
    ),
    Scenario(
        name="a proxy answers every listing with a page of its own",
        faults=(_fault("other", "list", times=_ALWAYS),),
        error="answer that is not from Cloud Storage",
    ),
    Scenario(
        name="every answer takes 0.5 s more",
        settings={"latency_seconds": 0.5},
    ),
    Scenario(
        name="one bit of an input is flipped on its way",
        faults=(_fault("flip", "media", name=_INPUT, skip=2),),
    ),
    Scenario(
        name="one bit of a shard is flipped on its way",
        faults=(
            _fault("flip", "insert", name=_SHARD),
            _fault("flip", "chunk", name=_SHARD),
        ),
    ),
    Scenario(
        name="the replies to 6 uploads are lost",
        faults=(
            _fault("lost", "insert", times=4, skip=2),
            _fault("lost", "chunk", times=2),
        ),
    ),
    Scenario(
        name="an input is replaced while it is read",
        faults=(_fault("replace", "media", name=_INPUT, skip=2),),
        error="deleted or written again while it was in use",
    ),
    Scenario(
        name="an input is deleted while it is read",
        faults=(_fault("remove", "media", name=_INPUT, skip=2),),
        error="deleted or written again while it was in use",
    ),
    Scenario(
        name="credentials expire (401)",
        faults=(_fault("401", times=_ALWAYS, skip=60, message="Invalid Credentials"),),
        # Those of the tests are anonymous; others are refreshed first, then refused.
        error="credentials cannot be refreshed",
    ),
    Scenario(
        name="the right to write is taken away (403)",
        faults=(
            _fault(
                "403",
                "insert",
                times=_ALWAYS,
                skip=4,
                message="storage.objects.create denied",
            ),
            _fault(
                "403",
                "start",
                times=_ALWAYS,
                message="storage.objects.create denied",
            ),
        ),
        error="storage.objects.create denied",
    ),
    Scenario(
        name="uploads get 503 for good",
        faults=(
            _fault("503", "insert", times=_ALWAYS, skip=4),
            _fault("503", "start", times=_ALWAYS),
        ),
        error="no success in",
    ),
    Scenario(
        name="the server goes down for good",
        faults=(_fault("down", skip=60),),
        error="no success in",
    ),
)


class Faults:
    """The bucket, and conversions over it.

    Args:
        work: Directory for the inputs.
        size_bytes: Size of the inputs.
        server: The bucket.
        limits: Environment of the conversions.
    """

    def __init__(
        self,
        work: pathlib.Path,
        size_bytes: int,
        server: GcsProcess,
        limits: dict[str, str],
    ):
        self._server = server
        os.environ["STORAGE_EMULATOR_HOST"] = server.url
        self._storage = GcsStorage()
        self._environment = {**os.environ, **limits}
        self._inputs: dict[str, bytes] = {}
        written = c4_like.write_dataset(work / "in", size_bytes=size_bytes, files=4)
        for number, file in enumerate(written):
            data = file.path.read_bytes()
            self._inputs[f"gs://in/part-{number:05}.tfrecord"] = data
        self._digest = ""

    def run(self, scenario: Scenario) -> dict[str, Any]:
        """Converts under faults; again without them, if that ended with an error.

        Raises:
            AssertionError: It ended otherwise than it must.
        """
        for directory in ("gs://in", "gs://out"):
            delete_all(self._storage.scan(directory, deep=True))
        for path, data in self._inputs.items():
            self._storage.write(path, data)
        self._server.control(clear=True)
        self._server.control(set=scenario.settings, fail=scenario.faults)
        code, text, seconds = self._convert()
        if any(fault["kind"] == "down" for fault in scenario.faults):
            self._server.come_up()
        self._server.control(clear=True, set={"latency_seconds": 0.0})
        message = re.sub(r"\s+", " ", text.strip())
        assert (code != 0) == (scenario.error is not None), (scenario.name, text)
        assert re.search(scenario.error or "", message), (scenario.name, text)
        kept = 0
        if code:
            for path, data in self._inputs.items():
                found = self._storage.load(path)
                if found is None or found.data != data:
                    # Its own generation is part of the job, which starts again.
                    self._storage.write(path, data)
            kept = len(self._storage.match("gs://out/c4/index/*.index"))
            code, text, _ = self._convert(
                "--overwrite" if _lost_input(scenario) else ""
            )
            assert code == 0, (scenario.name, text)
        data = self._storage.read("gs://out/c4/dataset.json")
        digest = Manifest.decode(data, where="dataset.json").content_digest
        self._digest = self._digest or digest
        assert digest == self._digest, scenario.name
        return {
            "name": scenario.name,
            "error": _headline(message) if scenario.error else "",
            "seconds": seconds,
            "kept": kept,
        }

    def _convert(self, *options: str) -> tuple[int, str, float]:
        begun = time.monotonic()
        done = subprocess.run(
            [
                *(sys.executable, "-m", "gristmill", "convert"),
                *("gs://in/*.tfrecord", "gs://out/c4", "--name=c4", "--workers=2"),
                *("--num-shards=8", *filter(None, options)),
            ],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        return done.returncode, done.stderr, time.monotonic() - begun


def _lost_input(scenario: Scenario) -> bool:
    return any(fault["kind"] in ("replace", "remove") for fault in scenario.faults)


def _headline(message: str) -> str:
    """Returns the `what` and `got` of a gristmill error."""
    match = re.search(
        r"(?:error: )?(?P<what>[^:]+?) where: \S+(?: .*?)? got: +(?P<got>.+?) to do:",
        message,
        re.IGNORECASE,
    )
    return message if match is None else f"{match['what']}: {match['got']}"


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table."""
    lines = [
        "| what happens | what the user sees | seconds | shards kept | in the end |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    for row in rows:
        seen = row["error"].replace("|", "\\|") if row["error"] else "the dataset"
        kept = row["kept"] if row["error"] else ""
        lines.append(
            f"| {row['name']} | {seen} | {row['seconds']:.1f} | {kept} | "
            f"{'once more: the same dataset' if row['error'] else 'the same dataset'} |"
        )
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all scenarios; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=c4_like.parse_size, default=80_000_000)
    parser.add_argument("--only", default="", help="scenarios with this in their name")
    parser.add_argument("--markdown", type=pathlib.Path, help="document to update")
    parser.add_argument(
        "--quick", action="store_true", help="give up after 8 s instead of 120"
    )
    args = parser.parse_args(argv)
    limits = {}
    if args.quick:
        limits = {
            "GRISTMILL_GCS_TIMEOUT_SECONDS": "1",
            "GRISTMILL_GCS_DEADLINE_SECONDS": "8",
        }
    rows = []
    with (
        tempfile.TemporaryDirectory() as work,
        GcsProcess("in", "out") as server,
    ):
        faults = Faults(pathlib.Path(work), args.bytes, server, limits)
        for scenario in SCENARIOS:
            if args.only in scenario.name:
                rows.append(faults.run(scenario))
                print(render_table(rows[-1:]).splitlines()[-1], file=sys.stderr)
    table = render_table(rows)
    print(table)
    if args.markdown:
        write_between(args.markdown, _MARKS, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
