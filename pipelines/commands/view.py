"""`gristmill view`: a page to look at a dataset, and at the order of its records."""

from __future__ import annotations

import dataclasses
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import click

from gristmill.pipelines.commands.ending import exit_now
from gristmill.pipelines.commands.messages import (
    command_line,
    next_step,
    note,
    texts_of,
)
from gristmill.pipelines.commands.order import Order, opened_batches, read_state
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.given_datasets import mixture_of
from gristmill.pipelines.options.option import flag, integer, text, tokenizer_of_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViewOptions:
    """Options of `gristmill view` alone."""

    tokenizer: str | None = tokenizer_of_rows()
    html: str | None = text(
        "Write the page with a part of its content to this file, and exit.",
        "FILE",
        "none: the page is served",
    )
    port: int = integer(
        "Port of this machine to serve at.", 0, shown="a free one", least=0, most=65535
    )
    no_browser: bool = flag("Do not open a browser.")


@command("view", Order, ViewOptions, with_json=False)
def view(order: Order, options: ViewOptions) -> None:
    """Look at a dataset in a browser: shards, records and order.

    DATASET is a path, or NAME=PATH for each dataset of a mixture. With the options of
    the order, or the --state of a feed, the page also shows which records are in which
    step. It is served to browsers of this machine until Ctrl-C.
    """
    from gristmill.loader.data.dataset import Dataset
    from gristmill.pipelines.view.answers.opened_datasets import Opened

    split = order.split or _default_split(order.dataset)
    order = dataclasses.replace(order, split=split)
    batches = step = None
    if order.state is None and not order.given():
        found = order.opened()
        datasets = {"": found} if isinstance(found, Dataset) else found
    else:
        batches = opened_batches(order)
        names = batches.names or ("",)
        datasets = dict(zip(names, batches.datasets, strict=True))
        step = None if order.state is None else read_state(order.state)["step"]
    texts = texts_of(options.tokenizer)
    opened = Opened(datasets, batches, state_step=step, tokens=texts)
    if options.html is not None:
        again = command_line(without=("html",))
        _write(opened, options.html, shlex.join(["gristmill", *again]))
        click.echo(options.html)
        next_step(*again, why="all records and steps, in a browser")
        return
    _serve(opened, options.port, browser=not options.no_browser)


def _write(opened: Any, path: str, command: str) -> None:
    from gristmill.dataset.base.errors import StorageError
    from gristmill.pipelines.view.write_html import write_html

    try:
        write_html(opened, path, command=command)
    except OSError as e:
        raise StorageError(
            "the page cannot be written",
            where=path,
            got=e.strerror or e,
            cure="give another --html FILE, in a directory that is there",
        ) from e


def _default_split(dataset: tuple[str, ...]) -> str | None:
    """Returns the split to begin with of a single dataset that has several."""
    from gristmill.dataset.metadata.manifest import read_manifest

    paths = [path for some in (mixture_of(dataset) or {}).values() for path in some]
    paths = paths or [*dataset]
    manifest = read_manifest(paths[0]) if len(paths) == 1 else None
    if manifest is None or not manifest.splits:
        return None
    return min(manifest.splits, key=lambda name: (name != "train", name))


def _serve(opened: Any, port: int, *, browser: bool) -> None:
    """Serves the page until Ctrl-C, which is how it is meant to end."""
    from gristmill.pipelines.view.serve import PageServer
    from gristmill.pipelines.view.write_page import page

    with PageServer(opened, page, port=port) as server:
        click.echo(server.url)
        tunnel = tunnel_command(os.environ, server.server_port)
        # Editors that work on another machine say how to open a browser on this one.
        if browser and (tunnel is None or "BROWSER" in os.environ):
            _open_browser(server.url_once())
        if tunnel is not None:
            note(f"on your machine, run this, and open the address there:\n  {tunnel}")
        note("Ctrl-C ends it")
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            exit_now(0)


def tunnel_command(
    environ: Mapping[str, str],
    port: int,
    *,
    host: str | None = None,
    system: str = sys.platform,
) -> str | None:
    """Returns the way to make a port reachable from the user's machine.

    None on a machine that has a display, where its user is taken to be.

    Args:
        environ: The environment.
        port: The port.
        host: The name of this machine, by default as it says.
        system: Its system, as `sys.platform`.

    >>> tunnel_command({"DISPLAY": ":0"}, 8080)
    """
    host = platform.node() if host is None else host
    if "KUBERNETES_SERVICE_HOST" in environ:
        return f"kubectl port-forward pod/{host} {port}"
    has_display = system != "linux" or not environ.keys().isdisjoint(
        ("DISPLAY", "WAYLAND_DISPLAY")
    )
    if "SSH_CONNECTION" not in environ and has_display:
        return None
    user = f"{environ['USER']}@" if "USER" in environ else ""
    return f"ssh -N -L {port}:127.0.0.1:{port} {user}{host}"


def _open_browser(url: str) -> None:
    import threading
    import webbrowser

    # It may wait for the browser.
    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
