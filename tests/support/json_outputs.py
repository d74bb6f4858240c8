"""What every command prints with `--json`, by real runs on small data.

`python -m docs.make_contract` writes the schemas of docs/reference/contract from them.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections import defaultdict
from typing import Any
from unittest import mock

from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli
from tests.support.cloud import running
from tests.support.parquet_files import some_table, write_parquet
from tests.support.tars import tar_of


class Commands:
    """Runs commands in a folder, and keeps what they print with `--json`.

    Attributes:
        printed: The outputs of each command, `error` for those of all that failed.
    """

    def __init__(self, folder: pathlib.Path):
        self.printed = defaultdict[str, list[Any]](list)
        self._folder = folder

    def run(
        self, command: str, *arguments: object, code: int = 0, kind: str = ""
    ) -> None:
        """Runs a command with `--json`; `kind` names an output other than its usual."""
        text = self.plain(command, *arguments, "--json", code=code)
        found = text.splitlines() if command in ("head", "trace") else [text]
        for each in map(json.loads, found):
            kind = kind or command
            if isinstance(each, dict) and [*each] == ["error"]:
                kind = "error"
            elif command == "trace" and "bytes" in each:
                kind = "head"  # `--show` prints the record as `head` does.
            self.printed[kind].append(each)

    def plain(self, *arguments: object, code: int = 0) -> str:
        """Runs a command, and returns what it prints to standard output."""
        with contextlib.chdir(self._folder):
            done = CliRunner().invoke(cli, [*map(str, arguments)])
        if done.exit_code != code:
            raise AssertionError(f"{arguments}: {done.exit_code}, {done.output}")
        return done.stdout


def outputs_of_commands(folder: pathlib.Path) -> dict[str, list[Any]]:
    """Runs every command in several ways, and returns what they print with `--json`.

    Args:
        folder: An empty folder.
    """
    commands = Commands(folder)
    _write_inputs(commands, folder)
    _make_datasets(commands, folder)
    _look_at_datasets(commands, folder)
    _change_datasets(commands, folder)
    _submit(commands)
    return dict(commands.printed)


def _write_inputs(commands: Commands, folder: pathlib.Path) -> None:
    commands.plain("demo", "demo")
    lines = [
        {"text": f"line {number} of some", "number": number} for number in range(90)
    ]
    for name, part in (("a", lines[:40]), ("b", lines[40:80]), ("c", lines[80:])):
        text = "".join(json.dumps(line) + "\n" for line in part)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "nulls.jsonl").write_text('{"text": "x"}\n{"text": null}\n')
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    chats = [{"messages": said}, {"messages": said[:1]}]
    (folder / "chat.jsonl").write_text("".join(json.dumps(c) + "\n" for c in chats))
    (folder / "chat.jinja").write_text(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    )
    (folder / "words.txt").write_text("one\ntwo\nthree\n")
    (folder / "odd.jsonl").write_text('{"text": "x"}\n{"text": \n{"text": "y"}\n')
    write_parquet(folder / "table.parquet", some_table(9))
    members = [("x.txt", b"one"), ("x.json", b"{}"), ("y.txt", b"two")]
    (folder / "one.tar").write_bytes(tar_of(members))
    (folder / "mapped.py").write_text(
        "def double(record):\n    return [record, record]\n"
    )


def _make_datasets(commands: Commands, folder: pathlib.Path) -> None:
    from gristmill.dataset import Writer

    run = commands.run
    demo = "demo/tfrecords/demo.tfrecord-*"
    run("plan", demo, "--workers", 1)
    run("plan", "a.jsonl", "--hosts", 2, "--batch-size", 4)
    one = ("--workers", 1)
    run("convert", demo, "c4", "--num-shards", 2, *one)
    run("convert", demo, "c4", "--num-shards", 2, *one)  # It is committed.
    run("convert", "odd.jsonl", "odd", "--on-corrupt", "quarantine", *one)
    run("convert", "nulls.jsonl", "nulls", "--nulls", "skip", *one)
    with mock.patch("sys.path", [str(folder), *sys.path]):
        run("convert", "words.txt", "twice", "--map", "mapped:double", *one)
    run("convert", "table.parquet", "table", *one)
    run("convert", "one.tar", "tar", *one)
    run("convert", "odd.jsonl", "begun", *one, code=3)  # It is left unfinished.
    run("status", "begun")
    run("convert", "c4", "again", "--num-shards", 1, *one)
    run("convert", "a.jsonl", "days", *one)
    run("append", "days", "b.jsonl", *one)
    packing = ("--tokenizer", "demo/tokenizer.json", "--eos", "</s>", "--length", 64)
    run("pack", "a.jsonl", "rows", "--column", "text", *packing, *one)
    chat = ("--tokenizer", "demo/tokenizer.json", "--template", "chat.jinja")
    run("audit", "chat.jsonl", *chat)
    run("repack", "rows", "longer", "--length", 128, *one)
    (folder / "files").mkdir()
    for path in (folder / "c4").glob("*.array_record-*"):
        (folder / "files" / path.name).write_bytes(path.read_bytes())
    run("index", "files/*", "--name", "demo", *one)
    with Writer(folder / "bytes", records_per_shard=1) as writer:
        writer.write(b"text")
        writer.write(b"\xff\xfe")
        run("status", "bytes")


def _look_at_datasets(commands: Commands, folder: pathlib.Path) -> None:
    run = commands.run
    for dataset in ("c4", "days", "rows", "odd", "files", "twice", "longer"):
        run("inspect", dataset)
        run("status", dataset)
    run("head", "c4", "-n", 2)
    run("head", "days", "-n", 2)
    run("head", "rows", "-n", 2)
    run("head", "a.jsonl", "-n", 2)
    run("head", "words.txt", "-n", 2)
    run("head", "bytes")
    run("inspect", "c4", "--files", kind="inspect-files")
    run("doctor")
    run("doctor", "c4")
    run("verify", "c4", "--workers", 1)
    run("verify", "rows", "--workers", 1)
    run("verify", "c4", "--quick")
    run("diff", "c4", "again")
    run("diff", "days@1", "days", "--list")
    order = ("--seed", 1, "--batch-size", 4)
    run("trace", "c4", "--record", 5)
    run("trace", "c4", *order, "--step", 2, "--row", 1, "--show")
    run("trace", "days", *order, "--step", 2, "--row", 1)
    run("trace", "rows", *order, "--step", 1, "--row", 1, "--show")
    run("trace", "rows", *order, "--step", 1, "--row", 1, "--token", 3)
    run("trace", "c4", *order, "--record", 5, kind="trace-record")
    run("trace", "again", "--record", 5)
    run("trace", "twice", "--record", 3)
    run("trace", "table", "--record", 3)
    run("trace", "tar", "--record", 1)
    document = ("--document", "a.jsonl@line:3", "--stop-epoch", 1)
    run("trace", "rows", *order, *document, kind="trace-document")
    run(
        "trace",
        "x=c4",
        "y=days",
        "--weights",
        "x=1,y=2",
        *order,
        "--step",
        1,
        "--row",
        0,
    )
    losses = "step,loss\n" + "".join(f"{step},{2 + step % 3}\n" for step in range(9))
    (folder / "losses.csv").write_text(losses)
    rows = "step,row,loss\n3,1,9.0\n3,2,1.0\n4,0,1.0\n4,1,2.0\n"
    (folder / "of_rows.csv").write_text(rows)
    blame = (*order, "--steps", "3:5", "--most", 5)
    run("blame", "c4", *blame, "--losses", "losses.csv")
    run("blame", "rows", *blame, "--losses", "of_rows.csv")
    run("account", "c4", *order, "--steps", 5)
    run("account", "rows", *order, "--steps", 5)
    run("account", "bytes", *order, "--steps", 1)
    bench = ("--batch-size", 16, "--seconds", 0.1)
    run("bench-loader", "c4", *bench)
    run("bench-loader", "c4", *bench, "--repeat-cached", 1)


def _change_datasets(commands: Commands, folder: pathlib.Path) -> None:
    run = commands.run
    (folder / "unwanted.txt").write_text("a.jsonl@line:2\na.jsonl@line:7\n")
    (folder / "missing.txt").write_text("a.jsonl@line:4\nz.jsonl@line:7\n")
    run("remove", "days", "--records", "unwanted.txt")
    run("remove", "days", "--records", "missing.txt", "--allow-missing", "--erase")
    run("remove", "rows", "--records", "unwanted.txt")
    (folder / "ranks.jsonl").write_text(
        "".join(f'{{"number": {n}, "rank": {n}}}\n' for n in (0, 1, 1, 1 << 40))
    )
    join = ("attach", "days", "ranks.jsonl", "--number", "number", "--workers", 1)
    allowed = ("--missing", "0", "--repeated", "last", "--allow-unmatched")
    run(*join, code=2)
    run(*join, *allowed)
    run(*join, *allowed)
    run("unique", "a.jsonl", "--certificate", "a.duplicates", "--workers", 1)
    run("verify", "--certificate", "a.duplicates", kind="verify-certificate")
    run("unique", "days", "--certificate", "days.duplicates", "--workers", 1)
    seen = ("account", "days", "--batch-size", 4, "--steps", 9)
    run(*seen, "--by", "rank")
    run(*seen, "--by", "dataset")
    for dataset in ("days", "rows"):
        run("inspect", dataset)
        run("status", dataset)
        run("verify", dataset, "--workers", 1)
    run("diff", "rows@1", "rows", "--list")
    run("head", "rows")
    order = ("--seed", 1, "--batch-size", 4)
    for record in range(4):
        run("trace", "rows", "--record", record)
    document = ("--document", "a.jsonl@line:2", "--stop-epoch", 1)
    run("trace", "rows", *order, *document, kind="trace-document")
    run("rollback", "rows", 1)
    run("clean", "rows", "--dry-run")
    run("clean", "rows")
    (shard,) = (folder / "again").glob("*.array_record-*")
    shard.write_bytes(shard.read_bytes()[:-9])
    run("verify", "again", "--workers", 1, code=3)
    run("inspect", "nowhere", code=3)
    run("trace", "c4", *order, code=2)


def _submit(commands: Commands) -> None:
    """Submits to Dataflow, of which a local server stands in."""
    job = ("convert", "gs://raw/texts/*", "gs://data/texts", "--num-shards", "2")
    image = "us-docker.pkg.dev/my-project/gristmill/gristmill:1"
    with running() as cloud:
        for more in ((), ("--dry_run",)):
            done = cloud.submit(*job, f"--sdk_container_image={image}", *more, "--json")
            commands.printed["submission"].append(json.loads(done.stdout))
