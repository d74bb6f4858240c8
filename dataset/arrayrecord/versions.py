"""Versions of the encoder and the codec, which decide the bytes of a shard.

A job names them, so that no machine with others takes part in it, and a job that was
begun is finished as it was begun. Jobs of earlier releases could have been begun with
the writer of array_record, which has its codecs built in: none of them is finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.arrayrecord.compress import codec_version
from gristmill.dataset.arrayrecord.writer_options import (
    ARRAY_RECORD,
    WRITER,
    WriterOptions,
)
from gristmill.dataset.base.errors import JobChangedError

# Increased when the same records and codec give other bytes.
_ENCODER_VERSION = 1


def with_versions(options: WriterOptions) -> WriterOptions:
    """Returns options that name versions: this machine's, where they name none."""
    here = f"{WRITER}:{_ENCODER_VERSION},{codec_version(options)}"
    return dataclasses.replace(options, versions=options.versions or here)


def check_versions(options: WriterOptions, *, where: str) -> None:
    """Checks that this machine writes the same bytes as the planning machine.

    Raises JobChangedError.
    """
    here = with_versions(dataclasses.replace(options, versions="")).versions
    if options.versions in ("", here):
        return
    summary = "this machine would write other bytes than the job's other machines"
    cure = "install the same versions on all machines"
    if options.versions == ARRAY_RECORD:
        summary = "the job was begun with the writer of array_record, now left out"
        cure = "finish it with the release of gristmill that began it"
    raise JobChangedError(
        summary,
        where=where,
        expected=options.versions,
        got=here,
        cure=f"{cure}, or start over with --overwrite",
    )


def settled(wanted: WriterOptions, begun: Mapping[str, Any] | None) -> WriterOptions:
    """Returns the options of a begun job if they are equal, else the requested ones.

    The versions may be others than this machine's: a finished job needs none, and for
    another it is checked before anything is written.

    Args:
        wanted: Options without versions.
        begun: The options of the begun job as plain values, None for no such job.
    """
    with contextlib.suppress(TypeError, ValueError):
        if begun is not None:
            options = described_writer(begun)
            if dataclasses.replace(wanted, versions=options.versions) == options:
                return options
    return with_versions(wanted)


def described_writer(fields: Mapping[str, Any]) -> WriterOptions:
    """Returns options from plain values, those of earlier releases included.

    Raises TypeError or ValueError if they are not such values.
    """
    known = {name: value for name, value in fields.items() if name != "writer"}
    # Earlier releases have no name for the writer of array_record, or "official".
    if fields.get("writer") != WRITER:
        known["versions"] = ARRAY_RECORD
    return WriterOptions(**known)
