"""Text files as a source: each line is a record."""

from __future__ import annotations

from gristmill.dataset.errors import InputError
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.lines.line_source import LineSource
from gristmill.transforms.sources.lines.text_lines import TextLines


def make_source(spec: SourceSpec) -> LineSource:
    """Returns the source of a spec."""
    return LineSource(spec, TextLines())


def find_spec(files: InputFiles, options: RecordOptions) -> SourceSpec:
    """Returns how records are made: a record is a line.

    Raises:
        InputError: The options ask for columns.
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
