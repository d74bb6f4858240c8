"""Packing the documents of packed rows again, against packing their text again."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import random
import shutil
import sys
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import CorruptShardError, DataLossError, InputError
from gristmill.dataset.commit import publish_shard
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.lineage import origins_of, read_lineage
from gristmill.dataset.metadata.manifest import read_table
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.provenance import read_source_files
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.packing import PackingOptions, RepackOptions
from gristmill.pipelines.verify import verify
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.planning.shard_plan import PlanOptions
from gristmill.transforms.sources.formats import RecordOptions
from tests.support.buckets import upload
from tests.support.gcs_server import GcsServer

MODULE = """
def words(texts):
    return [[ord(letter) for letter in text] for text in texts]

words.vocabulary_size = 1000
words.special_ids = {"</s>": 2}
"""
LENGTH, OTHER = 64, 150


@pytest.fixture(autouse=True)
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "my_words.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_words", raising=False)
    for number in range(3):
        write_text(tmp_path / f"in{number}.txt", seed=number)
    return tmp_path


def write_text(path: pathlib.Path, *, seed: int, count: int = 60) -> None:
    rng = random.Random(seed)
    lengths = [int(rng.lognormvariate(3, 1.2)) for _ in range(count)]
    lines = ("".join(rng.choices("abcdefgh ", k=length)) for length in lengths)
    path.write_text("\n".join(lines) + "\n")


def pack(output: str, *sources: str, **options: Any) -> Split:
    """Packs lines of text; those without a letter are documents without a token."""
    given: dict[str, Any] = {
        "input_format": "text",
        "column": "-",
        "tokenizer": "my_words:words",
        "length": LENGTH,
        "num_shards": 4,
        "name": "texts",
        "split": "train",
        "eos": "</s>",
    }
    inputs = sources or ("in*.txt",)
    found = PackingOptions(input=inputs, output=output, **given | options)
    convert(**conversion_of(found)._asdict())
    return open_manifest(output).splits[found.split or "train"]


def repack(source: str, output: str, *, workers: int = 1, **options: Any) -> Split:
    found = RepackOptions(input=source, output=output, **options)
    convert(**conversion_of(found)._asdict(), workers=workers)
    splits = open_manifest(output).splits
    return splits[options.get("split") or "train"]


def content_of(output: str) -> dict[str, bytes]:
    """Returns shards and segment indexes by name."""
    folder = pathlib.Path(output)
    return {
        path.name: path.read_bytes()
        for path in (*folder.glob("*array_record*"), *folder.glob("index/*.segments"))
    }


def ledger(split: Split) -> dict[str, Any]:
    found = PackedSplit.parse(split.packed or {}, where="here").counts.as_dict()
    names = ("pieces", "padding_tokens", "cut_documents", "empty_documents")
    names += ("most_pieces",)
    return {name: found[name] for name in found if name not in names}


def segments_of(output: str, split: Split) -> list[SegmentIndex]:
    found = []
    for path in read_table(output, split).paths:
        place = layout.join(output, layout.segments_path(path))
        data = pathlib.Path(place).read_bytes()
        found.append(SegmentIndex.decode(data, where=place))
    return found


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows", ["packed", "example"])
@pytest.mark.parametrize("method", ["best-fit", "concat"])
def test_rows_are_those_of_packing_the_text(method: str, rows: str) -> None:
    source = pack("first", pack=method, rows=rows)
    again = repack("first", "again", length=OTHER)
    direct = pack("direct", length=OTHER)
    assert content_of("again") == content_of("direct")
    assert ledger(again) == ledger(source) == ledger(direct)
    assert verify("again", workers=1).findings == ()
    found = again.source["options"]["pack"]
    assert found["found"] == source.source["options"]["pack"]["found"]
    assert found["length"] == OTHER
    tokens = {name: source.packed[name] for name in ("documents", "tokens", "digest")}
    assert tokens.items() <= again.source.items()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"pack": "concat"},
        {"pack": "none", "length": 10_000},
        {"rows": "example", "length": 20},
    ],
    ids=str,
)
def test_other_rows(options: dict[str, Any]) -> None:
    source = pack("first")
    again = repack("first", "again", **options)
    pack("direct", **{"length": LENGTH} | options)
    assert content_of("again") == content_of("direct")
    assert ledger(again) == ledger(source)
    assert again.packed is not None
    assert again.packed["length"] == options.get("length", LENGTH)


@pytest.mark.slow
def test_fewer_shards_and_all_splits() -> None:
    pack("first", "in0.txt", "in1.txt")
    pack("first", "in2.txt", split="test", num_shards=1)
    found = RepackOptions(input="first", output="again", length=OTHER, num_shards=1)
    convert(**conversion_of(found)._asdict())
    old, new = open_manifest("first").splits, open_manifest("again").splits
    assert new.keys() == {"train", "test"}
    for name in new:
        assert ledger(new[name]) == ledger(old[name])
        assert new[name].shards == 1
    pack("direct", "in0.txt", "in1.txt", length=OTHER, num_shards=1)
    ours, theirs = content_of("again"), content_of("direct")
    shard = "texts-train.array_record-00000-of-00001"
    assert ours[shard] == theirs[shard]
    with pytest.raises(InputError, match="cannot make 5 shards"):
        repack("first", "more", split="train", num_shards=5)


@pytest.mark.slow
def test_what_was_truncated_stays_so() -> None:
    source = pack("first", truncate=True)
    again = repack("first", "again", length=OTHER)
    assert ledger(again) == ledger(source)
    assert ledger(source)["truncated_documents"] > 0
    shorter = repack("first", "shorter", length=LENGTH // 2, truncate=True)
    direct = pack("direct", length=LENGTH // 2, truncate=True)
    ours, theirs = ledger(shorter), ledger(direct)
    # A document can be truncated twice.
    assert ours.pop("truncated_documents") >= theirs.pop("truncated_documents")
    assert ours == theirs
    alone = ledger(repack("first", "alone", length=LENGTH // 2, pack="none"))
    assert alone["special_tokens"] == theirs["special_tokens"]
    assert alone["tokens"] == theirs["tokens"]


def documents_of(output: str, split: Split, shard: int) -> list[tuple[str, int]]:
    """Returns file and place of every document of a shard."""
    index = segments_of(output, split)[shard]
    origins = origins_of(
        read_table(output, split).columns,
        range(shard, shard + 1),
        read_source_files(output, split),
        read_lineage(output, split),
    )
    spans = list(map(origins.span, range(origins.columns["span_ends"][0])))
    assert len(spans) == len(index.span_documents)
    files = [origins.files[span.file_index].path for span in spans]
    return [
        (files[index.span_of(document)], int(place))
        for document, place in enumerate(index.document_places)
    ]


@pytest.mark.slow
def test_documents_are_traced_to_the_text() -> None:
    """Also behind several packings, whose datasets are gone."""
    source = pack("first")
    repack("first", "second", length=OTHER, num_shards=3)
    last = repack("second", "third", length=20, num_shards=2)
    expected = [place for n in range(4) for place in documents_of("first", source, n)]
    shutil.rmtree("first")
    shutil.rmtree("second")
    found = [
        place for shard in range(2) for place in documents_of("third", last, shard)
    ]
    assert found == expected
    assert verify("third", workers=1).findings == ()
    dataset = loader.open("third", split="train")
    batches = loader.global_batches(dataset, batch_size=1, shuffle="none", epochs=1)
    form = RowFormat(20, 2)
    seen = 0
    for step in range(0, last.records, 7):
        ids = decode_rows(form, batches.read(step)).tokens.tolist()
        for piece in batches.locate(step, 0).pieces:
            assert piece.source_format == "text"
            place = piece.source_offset_bytes
            line = pathlib.Path(str(piece.source_path)).read_bytes()[place:]
            text = [*line.partition(b"\n")[0], 2][piece.first_token :]
            own = ids[piece.begin_token : piece.end_token]
            assert own == text[: len(own)]
            (document,) = batches.find_document(str(piece.source_path), place)
            assert document.document == piece.document
            steps = {s.step for p in document.pieces for s in p.sightings}
            assert step in steps
            seen += 1
    assert seen > 40


@pytest.mark.slow
def test_a_restart_goes_on_and_overwrite_starts_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pack("first")
    publish, published = publish_shard.ShardPlace.publish, []

    def stop_after_two(self: Any, *args: Any, **more: Any) -> Any:
        if len(published) == 2:
            raise KeyboardInterrupt
        published.append(self.path)
        return publish(self, *args, **more)

    with monkeypatch.context() as patch:
        patch.setattr(publish_shard.ShardPlace, "publish", stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            repack("first", "again", length=OTHER)
    times = {path: os.stat(f"again/{path}").st_mtime_ns for path in published}
    split = repack("first", "again", length=OTHER)
    assert {path: os.stat(f"again/{path}").st_mtime_ns for path in times} == times
    other = RepackOptions(input="first", output="again", length=9, overwrite=True)
    convert(**conversion_of(other)._asdict())
    found = open_manifest("again").splits["train"]
    assert ledger(found) == ledger(split)
    assert found.packed is not None
    assert found.packed["length"] == 9


@pytest.mark.slow
def test_workers_make_the_same_bytes() -> None:
    pack("first")
    for workers in (1, 3):
        repack("first", f"again{workers}", length=OTHER, workers=workers)
    assert content_of("again1") == content_of("again3")


@pytest.mark.slow
def test_from_and_to_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    pack("first")
    repack("first", "here", length=OTHER)
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, "first", "first")
        repack("gs://bucket/first", "gs://bucket/again", length=OTHER)
        repack("gs://bucket/first", "copied", length=OTHER, num_shards=2)
        assert verify("gs://bucket/again", workers=1).findings == ()
        for name, data in content_of("here").items():
            folder = "again/index" if name.endswith(".segments") else "again"
            assert server.objects.buckets["bucket"][f"{folder}/{name}"].data == data
    copied = open_manifest("copied").splits["train"]
    assert ledger(copied) == ledger(open_manifest("here").splits["train"])


def damaged_shard(split: Split) -> pathlib.Path:
    """Damages a row of a shard."""
    path = pathlib.Path("first") / read_table("first", split).paths[1]
    data = bytearray(path.read_bytes())
    data[next(n for n in range(1500, len(data)) if data[n])] ^= 0xFF
    path.write_bytes(data)
    return path


@pytest.mark.slow
def test_documents_in_damaged_rows_are_left_out_and_counted() -> None:
    source = pack("first")
    path = damaged_shard(source)
    with pytest.raises(CorruptShardError, match="corrupt ArrayRecord"):
        repack("first", "again", length=OTHER)
    options = {"length": OTHER, "on_corrupt": "quarantine"}
    again = repack("first", "again", **options)
    assert again.quarantined_regions == 1
    ours, theirs = ledger(again), ledger(source)
    assert 0 < ours["documents"] < theirs["documents"]
    assert again.source["documents"] == theirs["documents"]
    lost = theirs["documents"] - ours["documents"]
    said = convert(
        **conversion_of(RepackOptions(input="first", output="b", **options))._asdict()
    ).text()
    assert f"LOST         {lost:,} of {theirs['documents']:,} documents" in said
    whole = documents_of("first", source, 1)
    found = documents_of("again", again, 1)
    assert set(found) < set(whole)
    assert found == [place for place in whole if place in set(found)]
    assert path.name in json.dumps(
        [
            json.loads(line)
            for file in pathlib.Path("again/quarantine").glob("*.jsonl")
            for line in file.read_text().splitlines()
        ]
    )


def change_manifest(field: str, value: Any) -> None:
    place = pathlib.Path("first/dataset.json")
    fields = json.loads(place.read_text())
    fields["splits"]["train"]["packed"][field] = value
    place.write_text(json.dumps(fields))


@pytest.mark.parametrize(("field", "value"), [("tokens", 1), ("digest", "0" * 32)])
def test_another_source_than_it_says_is_data_loss(field: str, value: Any) -> None:
    pack("first")
    change_manifest(field, value)
    with pytest.raises(DataLossError, match="not those of the source"):
        repack("first", "again", length=OTHER)
    assert not pathlib.Path("again/dataset.json").exists()


def test_a_dataset_that_was_packed_again_meanwhile() -> None:
    """Nothing that was read of the one before is taken for it."""
    pack("first")
    repack("first", "a", length=OTHER)
    pack("first", length=99, pack="concat", overwrite=True)
    source = open_manifest("first").splits["train"]
    assert ledger(repack("first", "b", length=OTHER)) == ledger(source)
    assert content_of("b") == content_of("a")


def test_segment_indexes_of_other_shards_are_refused() -> None:
    source = pack("first")
    a, b = (
        pathlib.Path("first") / layout.segments_path(path)
        for path in read_table("first", source).paths[:2]
    )
    shutil.copy(a, b)
    with pytest.raises(CorruptShardError, match="segment index"):
        repack("first", "again", length=OTHER)


def test_what_cannot_be_packed_again_is_refused(folder: pathlib.Path) -> None:
    pack("first")
    inputs = ("in0.txt",)
    plain = ConversionJob(
        inputs=inputs,
        output="plain",
        name="plain",
        records=RecordOptions(input_format="text"),
    )
    convert((plain,))
    with pytest.raises(InputError, match="only rows that `gristmill pack` made") as e:
        repack("plain", "again")
    assert "--split" in str(e.value.cure)
    packed = RecordOptions(input_format="packed")
    job = dataclasses.replace(plain, inputs=("first",), output="o", records=packed)
    with pytest.raises(InputError, match="only be packed again"):
        convert((job,))
    again = dataclasses.replace(job, pack=PackOptions(length=8))
    for wrong in (
        {"map": "my_words:words"},
        {"plan": PlanOptions(kind="records_per_shard", value=3)},
    ):
        with pytest.raises(InputError, match="only be packed again"):
            convert((dataclasses.replace(again, **wrong),))
    with pytest.raises(InputError, match="--eos has no effect"):
        convert((dataclasses.replace(again, pack=PackOptions(length=8, eos="1")),))
    files = dataclasses.replace(again, inputs=("first/*array_record*",))
    with pytest.raises(InputError, match="packed rows"):
        convert((files,))


def test_other_ids_and_no_documents() -> None:
    """Of 3 and 4 bytes, and a split without a token."""
    for size in (1 << 20, 1 << 30):
        module = pathlib.Path("my_words.py")
        text = MODULE.replace("ord(letter)", f"{size} - ord(letter)")
        module.write_text(text.replace("1000", str(size)))
        sys.modules.pop("my_words", None)
        output = f"first{size}"
        source = pack(output, num_shards=1)
        again = repack(output, f"again{size}", length=OTHER)
        assert ledger(again) == ledger(source)
    pathlib.Path("none.txt").write_text("\n\n\n")
    source = pack("empty", "none.txt", num_shards=1)
    again = repack("empty", "again-empty")
    assert ledger(again) == ledger(source)
    assert np.diff([again.records, source.records]) == [0]
