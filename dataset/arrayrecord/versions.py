"""The writer and its versions, which decide the bytes of a shard besides options.

A job names them, so that machines with other versions cannot take part. A job is
finished as it was begun: with the writer of its first shards, which is the official one
if an older release began it. Other jobs are not bound by this.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.arrayrecord.chunk_hash import is_compiled
from gristmill.dataset.arrayrecord.compress import codec_version
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import JobChangedError

# Increased when the same records and codec give other bytes.
_ENCODER_VERSION = 1


def with_versions(options: WriterOptions) -> WriterOptions:
    """Returns options that name the writer, and this machine's versions.

    Options with versions stay as they are: they come from the machine that planned the
    job. The official writer has built-in codecs, and needs none. It is the default if
    the hash of chunks is not compiled, as that is slow for large chunks.
    """
    undecided = options.writer is None and not options.versions
    if options.writer == "official" or (undecided and not is_compiled()):
        return dataclasses.replace(options, writer="official")
    here = f"gristmill:{_ENCODER_VERSION},{codec_version(options)}"
    versions = options.versions or here
    return dataclasses.replace(options, writer="gristmill", versions=versions)


def check_versions(options: WriterOptions, *, where: str) -> None:
    """Checks that this machine writes the same bytes as the planning machine.

    Raises JobChangedError.
    """
    here = with_versions(dataclasses.replace(options, versions="")).versions
    if options.versions not in ("", here):
        raise JobChangedError(
            "this machine would write other bytes than the job's other machines",
            where=where,
            expected=options.versions,
            got=here,
            cure="install the same versions on all machines, or start over with "
            "--overwrite",
        )


def settled(wanted: WriterOptions, begun: Mapping[str, Any] | None) -> WriterOptions:
    """Returns the options of a begun job if they are equal, else the requested ones.

    Versions may differ from those of this machine: a finished job needs none, and
    others are checked before anything is written.

    Args:
        wanted: Requested options, with or without a choice of the writer.
        begun: The options of the begun job as plain values, None if there is no such
            job.
    """
    with contextlib.suppress(TypeError, ValueError):
        if begun is None:
            return with_versions(wanted)
        options = described_writer(begun)
        writer, versions = wanted.writer or options.writer, options.versions
        if dataclasses.replace(wanted, writer=writer, versions=versions) == options:
            return options
    return with_versions(wanted)


def described_writer(fields: Mapping[str, Any]) -> WriterOptions:
    """Returns options from plain values, including those of older releases."""
    return WriterOptions(**{"writer": "official"} | dict(fields))
