"""The records to remove: lines of a file, and the records that they name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.removal.find_places import Place, find_places
from gristmill.transforms.removal.begin_removal import (
    done_before,
    open_split,
    request_of,
)


class Asked(NamedTuple):
    """What is to be removed.

    Attributes:
        arguments: Those of `begin_removal`.
        missing: Lines that name nothing that is there.
    """

    arguments: dict[str, Any]
    missing: Sequence[str]


def read_lines(path: str) -> list[str]:
    """Returns the lines of a file that are not empty, each once."""
    data = storage_for(path).read(path)
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as e:
        raise InputError(
            "the list of records is no text",
            where=path,
            got=e,
            cure="give a file of UTF-8 text, one record a line",
        ) from e
    return list(dict.fromkeys(line.rstrip("\r") for line in lines if line.strip()))


def asked_records(
    dataset: str,
    lines: Sequence[str],
    *,
    split: str | None = None,
    column: str | None = None,
    edition: int | None = None,
) -> Asked:
    """Finds the records that lines name.

    Args:
        dataset: The dataset's directory.
        lines: Each the number of a record, a place as `gristmill trace` shows it, or,
            with a column, a value. Of packed rows a place, of documents.
        split: The split; None for the only one.
        column: The feature that has the values.
        edition: The edition in which records have these numbers; None for the newest.

    Raises:
        InputError: A line is neither, or the split is not there.
    """
    manifest, name = open_split(dataset, split)
    found = manifest.splits[name]
    request = request_of(sorted(lines), column, edition)
    about = {"split": name, "request": request}
    pairs: list[tuple[int, Any]]
    if found.packed is not None:
        pairs = _documents(dataset, name, found, lines, column)
    elif column is not None:
        from gristmill.loader import open as open_dataset
        from gristmill.pipelines.removal.find_values import find_values

        opened = open_dataset(dataset, name, edition=found.edition)
        pairs = list(find_values(opened, column, lines))
    else:
        parsed = [_parsed(line) for line in lines]
        numbers = [one for one in parsed if isinstance(one, int)]
        if numbers and done_before(found, request):
            return Asked(about | {"records": (), "edition": edition}, ())
        places = [one for one in parsed if isinstance(one, Place)]
        of_places = [n for n, one in enumerate(parsed) if isinstance(one, Place)]
        pairs = [
            (number, one)
            for number, one in enumerate(parsed)
            if isinstance(one, int) and one < found.records
        ]
        pairs += [
            (of_places[number], record)
            for number, record in find_places(dataset, found, places)
        ]
    missing = sorted({*range(len(lines))} - {number for number, _ in pairs})
    if not pairs and done_before(found, request):
        return Asked(about | {"records": (), "edition": edition}, ())
    return Asked(
        about
        | {
            "records": sorted({record for _, record in pairs}),
            "edition": found.edition if edition is None else edition,
            "looked_up": True,
        },
        [lines[number] for number in missing],
    )


def _documents(
    dataset: str, name: str, split: Split, lines: Sequence[str], column: str | None
) -> list[tuple[int, Any]]:
    """Returns the number of a line, and row and piece of a document that it names.

    Raises InputError if it can name none.
    """
    from gristmill.loader import open as open_dataset
    from gristmill.pipelines.removal.find_documents import find_documents

    places = []
    for line in lines:
        place = None if column is not None else _parsed(line)
        if not isinstance(place, Place):
            raise InputError(
                "of packed rows documents are removed, which have a place each",
                where=f"{dataset}, split {name}",
                expected="FILE@PLACE of a source file, as gristmill trace shows it, or "
                "SHARD@DOCUMENT",
                got=f"--column {column}" if column is not None else ascii(line),
                cure="give places: gristmill trace --step N --row N shows those of all "
                "documents of a row"
                if column is None
                else "leave --column out, and give places: the values of features are "
                "not kept in rows of tokens",
            )
        places.append(place)
    opened = open_dataset(dataset, name, edition=split.edition)
    return list(find_documents(opened, places))


def _parsed(line: str) -> int | Place:
    """Returns the number of a record, or a place."""
    text = line.strip()
    if text.isdecimal():
        return int(text)
    path, _, place = text.rpartition("@")
    number = place.removeprefix("line:").replace(",", "")
    if path and number.isdecimal():
        return Place(path, int(number), is_line=place.startswith("line:"))
    raise InputError(
        "a line names no record",
        expected="the number of a record, or FILE@PLACE as gristmill trace shows it",
        got=ascii(line),
        cure="correct the line; for values of a feature, give its name with --column",
    )
