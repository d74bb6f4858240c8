"""Packed rows as arrays, compared with what each token by itself says."""

import json
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.row_format import RowFormat, encode_rows
from gristmill.loader.packed.segment_arrays import RowLayout
from tests.support.packed_rows import Piece, batch_of, some_rows

ARRAYS = (
    "inputs",
    "targets",
    "inputs_position",
    "targets_position",
    "inputs_segmentation",
    "targets_segmentation",
)


def token_by_token(
    rows: list[list[Piece]], length: int, document_positions: bool
) -> dict[str, np.ndarray]:
    out = {name: np.zeros((len(rows), length), np.int64) for name in ARRAYS}
    for row, pieces in enumerate(rows):
        column = 0
        for number, (first, ids) in enumerate(pieces, 1):
            for at, token in enumerate(ids):
                position = at + first * document_positions
                found = {
                    "inputs": token,
                    "inputs_position": position,
                    "targets_position": position,
                    "inputs_segmentation": number,
                }
                if at + 1 < len(ids):
                    found |= {"targets": ids[at + 1], "targets_segmentation": number}
                for name, value in found.items():
                    out[name][row, column] = value
                column += 1
    return out


def encoded(
    rows: list[list[Piece]], length: int, id_bytes: int = 2, kind: str = "packed"
) -> list[bytes]:
    return encode_rows(RowFormat(length, id_bytes, kind), batch_of(rows))


@given(
    st.data(),
    st.sampled_from([1, 2, 9]),
    st.sampled_from([2, 3]),
    st.sampled_from(["packed", "example"]),
    st.booleans(),
)
def test_every_token_is_where_it_belongs(
    data, length, id_bytes, kind, document_positions
):
    rows = data.draw(some_rows(length, id_bytes))
    decode = loader.PackedRows(
        length=length,
        id_bytes=id_bytes,
        rows=kind,
        document_positions=document_positions,
    )
    batch = decode(encoded(rows, length, id_bytes, kind))
    expected = token_by_token(rows, length, document_positions)
    assert tuple(batch) == ARRAYS
    for name, array in batch.items():
        assert (array.dtype, array.shape) == (np.int32, (len(rows), length)), name
        # JAX takes it as it is, on CPUs.
        assert array.ctypes.data % 64 == 0 or not array.size
        np.testing.assert_array_equal(array, expected[name], name)
        array += 1  # It can be written to, and no other changes with it.


@given(st.sets(st.sampled_from(ARRAYS), min_size=1), st.booleans())
def test_arrays_can_have_other_names_and_be_left_out(kept, renamed):
    names = {name: name.upper() if renamed else name for name in kept}
    names |= {name: None for name in ARRAYS if name not in kept}
    records = encoded([[(0, [1, 2]), (4, [3])]], 4)
    everything = loader.PackedRows(length=4)(records)
    batch = loader.PackedRows(length=4, names=names)(records)
    assert list(batch) == [names[name] for name in ARRAYS if name in kept]
    for name in kept:
        np.testing.assert_array_equal(batch[names[name]], everything[name])


def test_tokens_of_four_bytes():
    decode = loader.PackedRows(length=2, id_bytes=4)
    good, bad = encoded([[(0, [2**31 - 1, 70_000])], [(0, [7, 2**31 + 5])]], 2, 4)
    assert decode([good])["inputs"].tolist() == [[2**31 - 1, 70_000]]
    with pytest.raises(
        DecodeError, match=r"int32(.|\n)*got:      2147483653"
    ) as caught:
        decode([good, bad])
    assert caught.value.row == 1


@pytest.mark.parametrize("kind", ["packed", "example"])
def test_rows_that_are_none_are_named(kind):
    decode = loader.PackedRows(length=4, rows=kind)
    good, longer = (
        encoded([[(0, [1])]], 4, 2, kind),
        encoded([[(0, [1] * 5)]], 5, 2, kind),
    )
    for record, message in (
        (longer[0], "give the length that the dataset was packed with"),
        (good[0][:-1], "record is not a packed row"),
        (b"some text", "record is not a packed row"),
    ):
        with pytest.raises(DecodeError, match=message) as caught:
            decode([*good, *good, record])
        assert caught.value.row == 2


def packed_dataset(
    path: pathlib.Path, rows: list[list[Piece]], length: int, **options: object
) -> loader.Dataset:
    """Writes rows as a dataset that says what they are."""
    with Writer(path, records_per_shard=5) as writer:
        for record in encoded(rows, length, **options):
            writer.write(record)
    return described(path, length=length, id_bytes=2, rows="packed")


def described(path: pathlib.Path, **stored: object) -> loader.Dataset:
    packed = PackedSplit(
        **{"vocabulary_size": 256, "method": "best-fit", "counts": PackedCounts()}
        | stored
    )
    return changed(path, packed.encode())


def changed(path: pathlib.Path, packed: dict[str, object]) -> loader.Dataset:
    manifest = json.loads((path / "dataset.json").read_text())
    manifest["splits"]["train"]["packed"] = packed
    (path / "dataset.json").write_text(json.dumps(manifest))
    return loader.open(path)


ROWS = [[(0, [row, 1]), (row, [2])] for row in range(12)]


def test_a_feed_names_the_record_that_is_no_row(tmp_path):
    with Writer(tmp_path / "packed") as writer:  # It does not say what they are.
        for record in encoded(ROWS, 4):
            writer.write(record)
    dataset = loader.open(tmp_path / "packed")
    batches = loader.global_batches(dataset, batch_size=4, shuffle="none")
    decode = loader.PackedRows(length=4, id_bytes=3)

    def of_rows(records):
        return decode(records)

    with (
        batches.feed(decode=of_rows, host=(0, 1)) as feed,
        pytest.raises(DecodeError, match=r"packed, record 0 (.|\n)*of 3 bytes"),
    ):
        next(feed)


@pytest.mark.slow
def test_a_dataset_says_how_its_rows_are_stored(tmp_path):
    dataset = packed_dataset(tmp_path / "packed", ROWS, 4)
    decode = loader.PackedRows.of(
        dataset, dataset, document_positions=True, names={"targets": None}
    )
    assert decode == loader.PackedRows(
        length=4, document_positions=True, names={"targets": None}
    )
    named = {"a": dataset, "b": dataset}
    assert loader.PackedRows.of(named) == loader.PackedRows(length=4)
    other = packed_dataset(tmp_path / "other", ROWS, 4)
    other = described(tmp_path / "other", length=4, id_bytes=3, rows="example")
    assert loader.PackedRows.of(other, length=4) == loader.PackedRows(
        length=4, id_bytes=3, rows="example"
    )
    packed_dataset(tmp_path / "more", ROWS, 4)
    joined = loader.open([tmp_path / "packed", tmp_path / "more"])
    assert loader.PackedRows.of(joined) == loader.PackedRows(length=4)
    mixed = loader.open([tmp_path / "packed", tmp_path / "other"])
    for datasets, options, message in (
        ([dataset], {"length": 8}, r"expected: length 8, (.|\n)*got:      length 4, "),
        ([dataset, other], {}, r"other(.|\n)*expected: .*rows packed\n.*rows example"),
        ([mixed], {}, r"other(.|\n)*expected: .*rows packed\n.*rows example"),
    ):
        with pytest.raises(InputError, match=message):
            loader.PackedRows.of(*datasets, **options)


def test_a_dataset_of_other_records_is_refused(tmp_path):
    with Writer(tmp_path / "text") as writer:
        writer.write(b"text")
    for path in (tmp_path / "text", sorted((tmp_path / "text").glob("text*"))[0]):
        with pytest.raises(
            InputError, match=r"does not hold packed rows(.|\n)*pack it"
        ):
            loader.PackedRows.of(loader.open(path))


@pytest.mark.parametrize("tokens", range(1, 5))
def test_padding_of_any_width_is_cleared(tokens):
    layout = RowLayout.of(
        4, np.array([1]), np.array([tokens], np.uint32), np.array([tokens])
    )
    array = np.full((1, 4), -1, np.int32)
    layout.clear_padding(array)
    assert array.tolist() == [[-1] * tokens + [0] * (4 - tokens)]
