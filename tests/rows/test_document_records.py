"""Which records a job that packs documents makes of tables, and of other inputs."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import pyarrow as pa
import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.chat.document_inputs import document_records
from gristmill.transforms.conversion.begin import list_inputs
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.source import source_of
from gristmill.transforms.tokens.documents import DocumentReader
from gristmill.transforms.tokens.tokenizers import find_tokenizer
from tests.support.conversion import job_of
from tests.support.parquet_files import write_parquet

TEXT = PackOptions(length=8, tokenizer="t.json", column="body")
IDS = PackOptions(length=8, column="ids")
WHOLE = PackOptions(length=8, tokenizer="t.json", column="")


@pytest.mark.parametrize("name", ["parquet", "jsonl", "csv", "tsv", "webdataset"])
def test_the_column_alone_is_taken_of_tables(name):
    given = RecordOptions(input_format=name)
    found = document_records(given, TEXT, mapped=False)
    assert (found.record, found.columns) == ("column:body", ())
    found = document_records(given, IDS, mapped=False)
    assert (found.record, found.columns) == ("", ("ids",))
    assert document_records(given, TEXT, mapped=True) == given
    with pytest.raises(InputError, match="`column` -"):
        document_records(given, WHOLE, mapped=False)


@pytest.mark.parametrize("name", ["tfrecord", "arrayrecord", "text"])
def test_other_records_stay(name):
    given = RecordOptions(input_format=name)
    plain = dataclasses.replace(TEXT, column="text")
    for pack in (plain, WHOLE) if name == "text" else (TEXT, IDS, WHOLE):
        assert document_records(given, pack, mapped=False) == given


@pytest.mark.parametrize(
    ("name", "known"), [("a.csv", "csv"), ("b.TSV.gz", "tsv"), ("c.json", "jsonl")]
)
def test_tables_are_not_taken_line_by_line(name, known, tmp_path):
    path = tmp_path / name
    # Nothing but the name tells that it is one.
    path.write_text('text\n"one,\ntwo"\nthree\n')
    pack = PackOptions(length=8, tokenizer="t.json")
    job = job_of(path, tmp_path / "out", pack=pack)
    with pytest.raises(InputError, match="named as a table") as raised:
        list_inputs(job)
    assert raised.value.where == str(path)
    assert f"--input-format {known}," in raised.value.cure
    plain = dataclasses.replace(job, pack=None)
    with pytest.raises(InputError, match="named as a table") as raised:
        list_inputs(plain)
    assert "--input-format text" in raised.value.cure
    named = RecordOptions(input_format="text")
    assert list_inputs(dataclasses.replace(plain, records=named)).spec.format == "text"
    named_text = path.rename(f"{path}.txt")
    assert list_inputs(job_of(named_text, tmp_path / "out")).spec.format == "text"
    named_text.rename(path)
    lines = dataclasses.replace(pack, column="")
    for more in ({"pack": lines}, {"records": named}, {"map": "os.path:basename"}):
        found = list_inputs(dataclasses.replace(job, **more))
        assert found.spec.format == "text"


def test_records_that_are_asked_for():
    asked = RecordOptions(input_format="jsonl", record="line")
    assert document_records(asked, WHOLE, mapped=False) == asked
    assert document_records(asked, TEXT, mapped=True) == asked
    with pytest.raises(InputError, match="no effect") as raised:
        document_records(asked, TEXT, mapped=False)
    assert raised.value.got == "line"
    columns = RecordOptions(input_format="parquet", columns=("a", "b"))
    with pytest.raises(InputError, match="no effect") as raised:
        document_records(columns, IDS, mapped=False)
    assert raised.value.got == "a,b"


def documents_of(
    path: pathlib.Path, tokenizer: str | None, column: str
) -> list[list[int]]:
    """Returns the documents of a file, as a job reads them."""
    pack = PackOptions(length=8, tokenizer=tokenizer, column=column)
    pack = dataclasses.replace(pack, found=find_tokenizer(pack))
    files = list_inputs(job_of(path, path.parent / "out", pack=pack))
    (file,) = files
    everything = SourceRange(file_index=0, begin_bytes=0, end_bytes=-1)
    reader = DocumentReader(pack, file.spec)
    found = []
    for batch in source_of(file.spec).read(file, everything).batches():
        ids, lengths, *_ = reader.read(batch.records, str)
        found += [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    return found


def test_documents_of_tables(tmp_path, monkeypatch):
    """No example is made of text; what is no text column is found when planned."""
    module = f"tables_of_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(
        "def encode(texts):\n    return [[*text.encode()] for text in texts]\n"
        "encode.vocabulary_size = 256\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    name = f"{module}:encode"
    rows = [{"n": 1, "body": "one", "ids": [1, 2]}, {"n": 2, "body": "", "ids": []}]
    (tmp_path / "json").mkdir()
    lines = tmp_path / "json" / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "pq").mkdir()
    table = write_parquet(tmp_path / "pq" / "a.parquet", pa.Table.from_pylist(rows))
    (tmp_path / "csv").mkdir()
    cells = tmp_path / "csv" / "a.csv"
    cells.write_text("n,body\n1,12\n2,34\n")
    for path in (lines, table):
        assert documents_of(path, name, "body") == [[*b"one"], []]
        assert documents_of(path, None, "ids") == [[1, 2], []]
        with pytest.raises(InputError, match="cannot be records"):
            documents_of(path, name, "ids")
    assert documents_of(cells, name, "body") == [[*b"12"], [*b"34"]]
    assert documents_of(cells, None, "n") == [[1], [2]]
