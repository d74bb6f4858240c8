"""Columns that are attached here, in this process."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill import dataset
from gristmill.pipelines.columns.attach import attach_tables
from gristmill.pipelines.columns.row_store import JoinBy
from tests.support.datasets import convert

ID = JoinBy(feature="id", key="id")
NUMBER = JoinBy(feature=None, key="number")


def example(number):
    """Returns a record whose feature `id` names it."""
    return dataset.encode_example({"id": f"doc{number}", "n": number})


def examples(folder, shards):
    """Converts examples, so many for each shard; returns the dataset."""
    first, files = 0, []
    for count in shards:
        files.append([example(number) for number in range(first, first + count)])
        first += count
    return convert(folder, files)


def parquet(folder, columns):
    """Writes a table; returns its path."""
    path = folder / f"table-{len([*folder.iterdir()])}.parquet"
    pq.write_table(pa.table(dict(columns)), path)
    return str(path)


def json_lines(folder, rows):
    """Writes lines of JSON; returns their path."""
    path = folder / f"table-{len([*folder.iterdir()])}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def attach(output, folder, values, by=ID, **options):
    """Attaches the columns of a table to a dataset, in this process."""
    table = parquet(folder, values)
    return attach_tables(output, [table], by, workers=1, **options)


def attach_numbers(output, folder, records, **options):
    """Attaches columns `score` and `language` that follow from a record's number."""
    numbers = range(records)
    columns = {
        "number": [*numbers],
        "score": [number / records for number in numbers],
        "language": ["de" if number % 3 else "en" for number in numbers],
    }
    return attach(output, folder, columns, NUMBER, **options)
