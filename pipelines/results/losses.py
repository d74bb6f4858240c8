"""Losses of a training run, read from a file of CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TextIO

import numpy as np

from gristmill.dataset.errors import InputError
from gristmill.loader.provenance.excess import Losses

_COLUMNS = ("step", "row", "token", "end_token", "loss")
_EXPECTED = "columns step, loss and, if known, row, token, end_token"


def read_losses(path: str) -> Losses:
    """Reads the losses of steps, of rows, or of tokens of rows.

    Columns are `step`, `loss` and, where the losses are those of rows, `row`; where
    they are those of tokens, also `token`, the first of them, and `end_token`, the one
    after the last, by default the next one. Others are left out.

    Args:
        path: A CSV file with a header, or a file of JSON objects, one a line.

    Raises:
        InputError: The file cannot be read, or has no such columns.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows = list(_rows(file, path))
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise InputError(
            "the file of losses cannot be read",
            where=path,
            expected=_EXPECTED,
            got=str(e),
            cure="give a file of CSV or JSON lines, in UTF-8",
        ) from e
    columns = list(zip(*rows, strict=True)) or [()] * 5
    steps, of_rows, begins, ends = (np.array(c, np.int64) for c in columns[:4])
    return Losses(steps, of_rows, begins, ends, np.array(columns[4], np.float64))


def _rows(file: TextIO, path: str) -> Iterator[tuple[int, int, int, int, float]]:
    is_json = file.read(1) == "{"
    file.seek(0)
    table: Iterator[tuple[int, Callable[[], Any]]]
    if is_json:
        lines = enumerate(file, 1)
        table = ((n, partial(json.loads, line)) for n, line in lines if line.strip())
    else:
        reader = csv.DictReader(file, skipinitialspace=True)
        table = ((reader.line_num, partial(dict, fields)) for fields in reader)
    for number, fields in table:
        try:
            yield _parsed(fields())
        except (KeyError, TypeError, ValueError, RecursionError) as e:
            missing = f"no {e}" if isinstance(e, KeyError) else str(e)
            raise InputError(
                "not a loss",
                where=f"{path}, line {number:,}",
                expected=_EXPECTED,
                got=missing,
                cure="give CSV with these names in its first line, or a JSON object in "
                "each line",
            ) from e


def _parsed(fields: dict[str, Any]) -> tuple[int, int, int, int, float]:
    if not isinstance(fields, dict):
        raise TypeError(f"{fields!r:.100}")
    step, row, token = (_integer(fields, name) for name in _COLUMNS[:3])
    end = _integer(fields, "end_token")
    if step < 0 or (token >= 0 > row) or (end >= 0 > token):
        raise ValueError("a step, a row or a token is missing")
    if token >= 0:
        end = token + 1 if end < 0 else end
        if end <= token:
            raise ValueError(f"tokens {token} to {end}")
    return step, row, token, end, float(fields["loss"])


def _integer(fields: dict[str, Any], name: str) -> int:
    """Returns a number of a column, -1 if it is not there."""
    value = fields.get(name)
    if value is None or value == "":
        return -1
    number = int(value)
    if number != float(value) or number < 0:
        raise ValueError(f"{name} {value!r}")
    return number
