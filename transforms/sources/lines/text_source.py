"""Text files as a source: each line is a record."""

from __future__ import annotations

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.line_source import LineSource
from gristmill.transforms.sources.lines.parser import (
    Lines,
    Made,
    Positions,
    check_text,
    newline_ends,
    split_lines,
)


def make_source(spec: SourceSpec) -> LineSource:
    """Returns the source of a spec."""
    return LineSource(spec, TextLines())


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns the rules for records: a record is a line.

    Raises:
        InputError: The options name columns.
    """
    del files
    if options.columns or options.record not in ("", "line"):
        raise InputError(
            "lines of text have no columns",
            expected="--record line, which is what text is read as",
            got=f"--record {options.record}" if options.record else "--columns",
            cure="leave it out, or give --input-format jsonl, csv or tsv if the files "
            "are of one of these formats",
        )
    return SourceSpec("text", "line")


class TextLines:
    """Makes a record from each line, empty or not: its bytes without the newline."""

    format_name = "text"
    sure = True

    def ends(self, data: bytes) -> Positions:
        """See `LineParser`."""
        return newline_ends(data)

    def header_lines(self, lines: Lines, path: str) -> int:
        """See `LineParser`."""
        del lines, path
        return 0

    def records(self, lines: Lines) -> Made:
        """See `LineParser`."""
        check_text(lines)
        return Made(split_lines(lines), np.arange(len(lines.ends)))

    def next_start(self, data: bytes, *, final: bool) -> int | None:
        """See `LineParser`."""
        del final
        return data.find(b"\n") + 1 or None
