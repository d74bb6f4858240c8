"""Options of pipelines, as tests give them."""

from __future__ import annotations

import click

from gristmill.pipelines.commands.main import find_command

REQUIRED = {
    "append": {"output": "gs://a/c", "input": ("gs://a/b",)},
    "convert": {"input": ("gs://a/b",), "output": "gs://a/c"},
    "index": {"files": ("gs://a/b*",)},
    "pack": {"input": ("gs://a/b",), "output": "gs://a/c"},
    "repack": {"input": "gs://a/b", "output": "gs://a/c"},
    "verify": {"dataset": "gs://a/b"},
}


def given_to(pipeline: str, *arguments: str) -> click.Context:
    """Parses a command line as the command does, without running it."""
    places = [
        str(v[0] if isinstance(v, tuple) else v) for v in REQUIRED[pipeline].values()
    ]
    command = find_command(pipeline)
    return command.make_context(pipeline, [*places, *arguments])
