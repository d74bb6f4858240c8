"""The command of a conversion, to copy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from gristmill.dataset.metadata import layout
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.definitions import options_of


def command_of(options: ConvertOptions, *, workers: int | None = None) -> str:
    """Returns the command of a conversion, for a shell.

    Args:
        options: The conversion.
        workers: Processes on this machine; None for the default.
    """
    words = ["gristmill", "convert", *options.input, options.output]
    always = ("compression", "group_size")
    for option in options_of(ConvertOptions):
        value = getattr(options, option.name)
        if option.required or (value == option.default and option.name not in always):
            continue
        words += [option.flag] if value is True else [option.flag, str(value)]
    words += [] if workers is None else ["--workers", str(workers)]
    return shlex.join(words)


def default_output(inputs: Sequence[str]) -> str:
    """Returns a directory for the output of inputs: in the same bucket, or here.

    It is named after the directory of the inputs.

    >>> default_output(["gs://raw/c4/*.tfrecord"])
    'gs://raw/c4-arrayrecord'
    >>> default_output(["/data/pile/train"]), default_output(["a.csv", "b.csv"])
    ('train-arrayrecord', 'a-arrayrecord')
    """
    remote = inputs[0].startswith("gs://")
    rest = inputs[0].removeprefix("gs://")
    parts = [part for part in rest.split("/") if part] or ["dataset"]
    # A pattern, or the name of a file.
    while len(parts) > 1 and re.search(r"[*?\[]|\.[A-Za-z]", parts[-1]):
        parts.pop()
    stem = re.split(r"[*?\[]|\.[A-Za-z]", parts[-1])[0]
    if stem in ("", ".", "..") and not remote:
        stem = layout.base_name(stem or ".")
    words = filter(None, re.split(r"[^A-Za-z0-9_]+", stem))
    name = "-".join([*words] or ["dataset"]) + "-arrayrecord"
    if not remote:
        return name
    return "/".join(["gs:/", *(parts[:-1] or parts), name])
