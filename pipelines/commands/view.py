"""`gristmill view`: a page about a dataset, and the order of its records."""

from __future__ import annotations

import pathlib
import shlex
import webbrowser
from typing import Any

import click

from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import (
    command_line,
    next_step,
    refuse,
    texts_of,
)
from gristmill.pipelines.commands.order import (
    ORDER,
    numbers_by_name,
    opened_batches,
    opened_of,
    order_given,
    paths_of,
    read_state,
)
from gristmill.pipelines.commands.shared_options import flag, text, tokenizer_of_rows
from gristmill.pipelines.options.job_options import usual_split


@command(looks=True, with_json=False)
@ORDER
@text(
    "--records",
    "N,A:B,...",
    "Records to show, counted from 0; A:B is all from A to before B. For a mixture "
    "NAME=N,NAME=A:B.",
    "some from all over the dataset",
)
@text(
    "--steps",
    "N,A:B,...",
    "Steps to show, counted from 0, of the order that the other options say.",
    "some from all over the run",
)
@tokenizer_of_rows()
@text(
    "--html",
    "FILE",
    "Write the page to this file.",
    "DATASET.view.html, by its name, here",
)
@flag("--open", "Open the page in a browser.")
def view(given: Any) -> None:
    """Write a page about a dataset, its records and its sources.

    DATASET is a path, or NAME=PATH for each dataset of a mixture. With the options of
    the order, or the --state of a feed, the page also shows which records are in which
    step. It is one file that needs no server; it holds --records and --steps, and as
    many others as fit into 2 MB.
    """
    from gristmill.dataset.base.errors import StorageError
    from gristmill.pipelines.view.sections import title_of
    from gristmill.pipelines.view.write_html import Subject, write_html

    given.split = given.split or _default_split(given.dataset)
    batches, wanted = None, numbers_by_name(given.steps, "--steps").get("", [])
    if given.state is None and not order_given():
        datasets = opened_of(given)
        refuse(
            wanted,
            "--steps needs the order of the records",
            cure="give --batch-size and the other options of the order, or --state",
        )
    else:
        batches = opened_batches(given)
        datasets = dict(zip(batches.names or ("",), batches.datasets, strict=True))
        if given.state is not None:
            wanted.append(read_state(given.state)["step"])
        _check(wanted, batches.schedule.step_limit, "--steps")
    shown = numbers_by_name(given.records, "--records")
    for name, numbers in shown.items():
        refuse(
            name not in datasets,
            "--records names no dataset of the mixture",
            expected=f"NAME=N with one of {', '.join(datasets)}"
            if "" not in datasets
            else "numbers without a name",
            got=given.records,
            cure="give the names that DATASET has",
        )
        _check(numbers, len(datasets[name]), "--records")
    texts = texts_of(given.tokenizer)
    for one in datasets.values() if texts is not None else ():
        for part in one.stored.parts:
            if part.committed is not None and texts is not None:
                texts.check_packed(part.committed.packed, repr(part))
    again = command_line(without=("records", "steps", "html", "open"))
    title = "-".join(title_of(one) for one in datasets.values())
    path = given.html or f"{title}.view.html"
    subject = Subject(
        datasets=datasets,
        batches=batches,
        texts=texts,
        records=shown,
        steps=wanted,
        command=shlex.join(["gristmill", *again]),
    )
    try:
        write_html(subject, path)
    except OSError as e:
        raise StorageError(
            "the page cannot be written",
            where=path,
            got=e.strerror or e,
            cure="give another --html FILE, in a directory that is there",
        ) from e
    click.echo(path)
    if given.open:
        webbrowser.open(pathlib.Path(path).resolve().as_uri())
    next_step(*again, "--records", "0:10", why="records of your choice")


def _check(numbers: list[int], stop: int, option: str) -> None:
    """Raises InputError for a number that is too large."""
    most = max(numbers, default=-1)
    refuse(
        most >= stop,
        f"{option} has a number that is too large",
        expected=f"below {stop:,}",
        got=most,
        cure="give a smaller one",
    )


def _default_split(dataset: tuple[str, ...]) -> str | None:
    """Returns the split to begin with of a single dataset that has several."""
    from gristmill.dataset.metadata.manifest import read_manifest

    paths = [path for some in paths_of(dataset).values() for path in some]
    manifest = read_manifest(paths[0]) if len(paths) == 1 else None
    return usual_split(manifest.splits) if manifest and manifest.splits else None
