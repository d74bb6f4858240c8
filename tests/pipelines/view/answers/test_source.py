"""Sources of records, read back from the files."""

from __future__ import annotations

import pathlib

from gristmill import loader
from gristmill.dataset.formats.tfrecord.frame_layout import encode_frame
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.transforms.sources.formats import RecordOptions
from tests.pipelines.view.conftest import DOCUMENTS
from tests.support.conversion import convert, job_of
from tests.support.packed_datasets import STRIDE


def test_the_frame_of_a_record_is_at_its_place(opened, records) -> None:
    for number, record in enumerate(records):
        source = ask(opened, f"api/source?record={number}")["source"]
        frame = encode_frame(record)
        begin = source["offset_bytes"]
        data = pathlib.Path(source["path"]).read_bytes()
        assert data[begin : begin + len(frame)] == frame
        assert source["format"] == "tfrecord"
        assert source["file_bytes"] == len(data)
        assert source["text"][0] == f"source   {source['path']}"


def test_the_line_of_a_record_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"line {n}\n" for n in range(30)))
    records = RecordOptions(input_format="text")
    convert(job_of(path, tmp_path / "out", records=records))
    opened = Opened({"": loader.open(tmp_path / "out")})
    assert ask(opened, "api/source?record=12")["source"]["line"] is None
    found = ask(opened, "api/source?record=12&read=1")["source"]
    assert found["line"] == 13
    assert path.read_bytes()[found["offset_bytes"] :].startswith(b"line 12\n")


def test_pieces_of_a_packed_row_have_sources(packed) -> None:
    dataset = packed.datasets[""]
    seen = 0
    for number in range(len(dataset)):
        row = ask(packed, f"api/record?record={number}")
        assert row["fields"] == []
        pieces = ask(packed, f"api/source?record={number}")["pieces"]
        for segment, piece in zip(row["segments"], pieces, strict=True):
            tokens = [token for token, _ in segment["tokens"]]
            document, first = divmod(tokens[0], STRIDE)
            assert tokens == list(range(tokens[0], tokens[0] + len(tokens)))
            assert piece["begin_token"] == segment["begin_token"]
            assert piece["end_token"] - piece["begin_token"] == len(tokens)
            assert piece["first_token"] == segment["first_token"] == first
            data = pathlib.Path(piece["path"]).read_bytes()
            assert data[piece["offset_bytes"] :].startswith(
                encode_frame(DOCUMENTS[document])
            )
            seen += len(tokens)
    assert seen == dataset.packed_counts().tokens
