"""Packed rows where records are expected, and records where packed rows are."""

import dataclasses
import glob
import pathlib
import shutil

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.pipelines.convert import convert as run
from gristmill.pipelines.index import index
from gristmill.pipelines.options.definitions import IndexOptions
from gristmill.transforms.jobs.appended_job import open_to_append
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.pack_options import PackOptions
from tests.support.datasets import convert, describe
from tests.support.packed import documents, pack

HOST = {"process_index": 0, "process_count": 1}
EXAMPLES = loader.ExampleDecoder({"inputs": loader.FixedFeature("int64")})
TOKENS = loader.TokenDecoder(length=32, stored="uint16")


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    made = documents(60, seed=1)
    plain = [np.arange(n, n + 32, dtype="<u2").tobytes() for n in range(37)]
    return {
        "short": pack(tmp_path_factory.mktemp("short"), [made], length=32),
        "long": pack(tmp_path_factory.mktemp("long"), [made], length=64),
        "plain": convert(tmp_path_factory.mktemp("plain"), [plain]),
    }


@pytest.fixture(scope="module")
def opened(places) -> dict[str, loader.Dataset]:
    return {name: loader.open(place) for name, place in places.items()}


def feed_of(datasets, decode):
    return loader.global_batches(datasets, batch_size=4).feed(decode=decode, **HOST)


def test_an_example_decoder_of_packed_rows_names_the_right_one(opened):
    with pytest.raises(InputError, match="does not say what features") as refused:
        loader.ExampleDecoder.of(opened["short"])
    assert "loader.PackedRows.of(dataset)" in str(refused.value)


@pytest.mark.parametrize("decode", [TOKENS, EXAMPLES], ids=["tokens", "examples"])
def test_decoders_of_other_records_are_refused(decode, opened, places):
    both = loader.open([places["plain"], places["short"]])
    mixed = {"a": opened["plain"], "b": opened["short"]}
    for datasets in (opened["short"], both, mixed):
        with pytest.raises(InputError, match="packed rows, which no") as refused:
            feed_of(datasets, decode)
        assert "loader.PackedRows.of(dataset)" in str(refused.value)
        assert places["short"] in str(refused.value)


def test_packed_rows_of_other_records_are_refused(opened, places):
    rows = loader.PackedRows(length=32, id_bytes=4)
    both = loader.open([places["short"], places["plain"]])
    mixed = {"a": opened["short"], "b": opened["plain"]}
    for datasets in (both, mixed):
        with pytest.raises(InputError, match="does not hold packed rows") as refused:
            feed_of(datasets, rows)
        assert places["plain"] in str(refused.value)
    for dataset in (both, opened["plain"]):
        with pytest.raises(InputError, match="does not hold packed rows"):
            loader.PackedRows.of(dataset)
    with pytest.raises(InputError, match="does not hold packed rows") as refused:
        feed_of(opened["plain"], rows)
    assert "records as a conversion read them" in str(refused.value)
    # Files say nothing of their records: the first of them does.
    files = loader.open(glob.glob(f"{places['plain']}/*.array_record*"))
    feed = feed_of(files, rows)
    with pytest.raises(DecodeError, match="not a packed row") as refused, feed:
        next(feed)
    assert places["plain"] in str(refused.value)
    with pytest.raises(DecodeError, match="it begins otherwise") as refused:
        rows([b"a text of some words"])
    assert "1 to 32 pieces" in str(refused.value)


def test_a_decoder_of_other_features_is_refused(tmp_path):
    path = convert(tmp_path, [[b"not read"] * 8])
    spec = FeatureSpec(kind="int64", dtype="int64", shape=(None,))
    describe(path, encode_features({"ids": spec}))
    dataset = loader.open(path)
    column = loader.FixedFeature("int64")
    for decode, message in (
        (EXAMPLES, "no feature 'inputs'"),
        (loader.TokenDecoder(length=32, feature="inputs"), "no feature 'inputs'"),
        (TOKENS, "decoded as tokens alone"),
        (loader.PackedRows(length=8), "does not hold packed rows"),
        (loader.PackedRows(length=8, rows="example"), "does not hold packed rows"),
    ):
        with pytest.raises(InputError, match=message):
            feed_of(dataset, decode)
    for feature in (
        dataclasses.replace(column, default=0),
        loader.PaddedFeature("int64", length=4),
        loader.RaggedFeature("int64"),
    ):
        feed_of(dataset, loader.ExampleDecoder({"inputs": feature})).close()
    for ids in (column, loader.RaggedFeature("int64")):
        feed_of(dataset, loader.ExampleDecoder({"ids": ids})).close()


def test_rows_of_several_lengths_need_the_greatest(opened, places):
    joined = loader.open([places["short"], places["long"]])
    for datasets in (joined, {"a": opened["short"], "b": opened["long"]}):
        with pytest.raises(InputError, match="stored in another way") as refused:
            feed_of(datasets, loader.PackedRows(length=32, id_bytes=4))
        assert "64 tokens a row" in str(refused.value)
        with feed_of(datasets, loader.PackedRows(length=64, id_bytes=4)) as feed:
            batch = next(feed)
        assert batch["inputs"].shape == (4, 64)
        rows = loader.PackedRows(length=64)
        with pytest.raises(InputError, match="stored in another way"):
            feed_of(datasets, rows)
    for datasets in ([joined], [opened["short"], opened["long"]]):
        with pytest.raises(InputError, match="stored in another way"):
            loader.PackedRows.of(*datasets)


def test_files_of_packed_rows_are_decoded_by_who_knows_them(opened, places):
    files = loader.open(sorted(glob.glob(f"{places['short']}/*.array_record*")))
    with feed_of(files, loader.PackedRows(length=32, id_bytes=4)) as feed:
        found = next(feed)
    with feed_of(opened["short"], loader.PackedRows.of(opened["short"])) as feed:
        expected = next(feed)
    np.testing.assert_array_equal(found["targets"], expected["targets"])


def test_packed_rows_are_not_converted_nor_appended_to(places, tmp_path):
    place = {"output": str(tmp_path / "out"), "name": "d"}
    rows = PackOptions(length=8, column="ids")
    for options in ({}, {"pack": rows}):
        job = ConversionJob(inputs=(places["short"],), **place, **options)
        with pytest.raises(InputError, match="the input holds packed rows") as refused:
            run([job], workers=1)
        assert "with gristmill pack" in str(refused.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="no records can be appended") as refused:
        open_to_append(places["short"], None)
    assert "loader.open([old, new])" in str(refused.value)
    run([ConversionJob(inputs=(places["plain"],), **place)], workers=1)


def test_packed_rows_are_not_indexed_in_their_place(places, tmp_path):
    copy = pathlib.Path(shutil.copytree(places["short"], tmp_path / "copy"))
    before = (copy / "dataset.json").read_bytes()
    for overwrite in (False, True):
        with pytest.raises(InputError) as refused:
            index(IndexOptions(files=(str(copy),), overwrite=overwrite), workers=1)
        said = "gristmill index cannot describe" if overwrite else "already"
        assert said in str(refused.value)
    assert (copy / "dataset.json").read_bytes() == before
    # Alone, they are files like others.
    (copy / "dataset.json").unlink()
    index(IndexOptions(files=(str(copy),)), workers=1)
    with feed_of(loader.open(str(copy)), None) as feed:
        decoded = loader.PackedRows(length=32, id_bytes=4)(next(feed))
    assert decoded["inputs"].shape == (4, 32)


def test_rows_of_other_tokenizers_are_named(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "in.txt").write_text("a text\n" * 20)
    opened = {}
    for name, first in (("one_way", 0), ("another_way", 100)):
        (tmp_path / f"{name}.py").write_text(
            f"def ids(texts):\n    return [[{first} + n for n in text.encode()] "
            "for text in texts]\nids.vocabulary_size = 400\n"
        )
        rows = PackOptions(length=8, column="", tokenizer=f"{name}:ids")
        output = str(tmp_path / name)
        job = ConversionJob(inputs=(f"{tmp_path}/in.txt",), output=output, name="d")
        run([dataclasses.replace(job, pack=rows)], workers=1)
        opened[name] = loader.open(output)
    decode = loader.PackedRows.of(*opened.values())
    feed_of(opened["one_way"], decode).close()
    assert not caplog.records
    feed_of(opened, decode).close()
    (said,) = caplog.messages
    assert "rows of different tokenizers" in said
    assert said.count("sha256:") == 2
