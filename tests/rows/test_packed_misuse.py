"""Packed rows where records are expected, and records where packed rows are."""

import glob

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.pipelines.convert import convert as run
from gristmill.transforms.conversion.take_output import open_to_append
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.pack_options import PackOptions
from tests.support.datasets import convert
from tests.support.packed import documents, pack

HOST = {"host": (0, 1)}
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
