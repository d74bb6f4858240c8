"""Files of lines for tests, and by other hands what their records are."""

import csv
import io
import json
import random

from gristmill.dataset.base.example import decode_example

_TEXTS = ["", "é\u2028", 'He said: "no",\nand\n"yes"\n', "a,b\tc", "plain", "\n\n,\n"]


def rows_of(count, *, seed):
    """Returns rows of a table of varied values, texts with all that CSV quotes."""
    chance = random.Random(seed)
    return [
        {
            "id": number - 7,
            "text": chance.choice(_TEXTS) * chance.choice((1, 1, 2, 30)),
            "score": chance.choice((number / 7, -2.5, 1e30)),
        }
        for number in range(count)
    ]


def jsonl_of(rows, *, newline="\n"):
    """Returns rows as JSON lines."""
    lines = (json.dumps(row, ensure_ascii=bool(n % 2)) for n, row in enumerate(rows))
    return "".join(line + newline for line in lines).encode()


def csv_of(rows, delimiter=","):
    """Returns rows as CSV with a header."""
    file = io.StringIO()
    writer = csv.DictWriter(
        file, list(rows[0]), delimiter=delimiter, lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue().encode()


def example_of(record):
    """Returns the values of a record, one or all of each feature."""
    return {
        name: (values[0].decode() if isinstance(values[0], bytes) else values[0])
        if len(values) == 1
        else values
        for name, values in decode_example(record).items()
    }
