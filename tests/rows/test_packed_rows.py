"""Packed rows as arrays, token by token; and decoders that are for other records."""

import glob
import json
import pathlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.dataset.packed.row_format import RowFormat, encode_rows
from gristmill.pipelines.convert import convert as run
from gristmill.transforms.conversion.take_output import open_to_append
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.pack_options import PackOptions
from tests.rows.packed_rows import Piece, batch_of, some_rows
from tests.support.conversation_rows import Said, Token, conversation, spans_of
from tests.support.datasets import convert
from tests.support.packed import documents, pack

ARRAYS = (
    "inputs",
    "targets",
    "inputs_position",
    "targets_position",
    "inputs_segmentation",
    "targets_segmentation",
)


NAMES = {
    name: name for name in ("targets_mask", "targets_weights", "inputs_mask", "labels")
}
PLAIN = Said(7, 0, True, 1.0)  # A token of a row of plain text.


def token_by_token(
    rows: list[list[Piece]],
    said: list[list[Token]],
    length: int,
    document_positions: bool,
) -> dict[str, np.ndarray]:
    out = {name: np.zeros((len(rows), length)) for name in (*ARRAYS, *NAMES)}
    out["labels"] -= 100
    pieces = iter(said)
    for row, row_pieces in enumerate(rows):
        column = 0
        for number, (first, ids) in enumerate(row_pieces, 1):
            tokens = next(pieces)
            for at, token in enumerate(ids):
                position = at + first * document_positions
                found = {
                    "inputs": token,
                    "inputs_position": position,
                    "targets_position": position,
                    "inputs_segmentation": number,
                }
                if at + 1 < len(ids):
                    found["targets"] = ids[at + 1]
                    after = tokens[at + 1]
                    if after is not None and after.trained:
                        found |= {"targets_segmentation": number, "targets_mask": 1}
                        found |= {"targets_weights": after.weight}
                        found |= {"labels": ids[at + 1]}
                        out["inputs_mask"][row, column + 1] = 1
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
    st.integers(0, 1 << 32),
    st.sampled_from([1, 2, 12]),
    st.sampled_from([2, 3]),
    st.sampled_from(["packed", "example", "chat", "mixed"]),
    st.booleans(),
)
def test_every_token_is_where_it_belongs(
    data, seed, length, id_bytes, kind, document_positions
):
    """Also in rows of conversations, alone and among rows of plain text."""
    chance, rows = random.Random(seed), data.draw(some_rows(length, id_bytes))
    stored = "example" if kind == "example" else "packed"
    records, batch = encoded(rows, length, id_bytes, stored), batch_of(rows)
    said = [[PLAIN] * size for size in batch.lengths.tolist()]
    if kind in ("chat", "mixed"):
        chats = [conversation(chance, len(tokens)) for tokens in said]
        batch = batch._replace(spans=spans_of(chats))
        ours = encode_rows(RowFormat(length, id_bytes), batch)
        begin = 0
        for row, end in enumerate(batch.row_ends.tolist()):
            if kind == "chat" or chance.random() < 0.5:
                records[row] = ours[row]
                said[begin:end] = chats[begin:end]
            begin = end
    decode = loader.PackedRows(
        length=length,
        id_bytes=id_bytes,
        rows=stored,
        document_positions=document_positions,
        names=NAMES,
    )
    found = decode(records)
    expected = token_by_token(rows, said, length, document_positions)
    assert tuple(found) == (*ARRAYS, *NAMES)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], name)
        dtype = np.float32 if name == "targets_weights" else np.int32
        assert (array.dtype, array.shape) == (dtype, (len(rows), length)), name
        # JAX takes it as it is, on CPUs.
        assert array.ctypes.data % 64 == 0 or not array.size
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


def test_one_array_alone() -> None:
    batch = batch_of([[(0, [5, 6])]])
    (record,) = encode_rows(
        RowFormat(4), batch._replace(spans=MessageSpans.of_documents([[]]))
    )
    nothing = dict.fromkeys(ARRAYS)
    for name, other in {"labels": "y", "targets_weights": "w"}.items():
        decode = loader.PackedRows(length=4, names={**nothing, name: other})
        (array,) = decode([record]).values()
        assert array.tolist() == [[-100 if name == "labels" else 0] * 4]
        assert [*decode([record])] == [other]


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
