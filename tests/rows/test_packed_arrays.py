"""Packed rows in feeds: arrays token by token, shares of tokens, other records."""

import glob
import json
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.base.errors import DecodeError, FormatVersionError, InputError
from gristmill.dataset.packed.counts import PackedCounts, PackedSplit
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.dataset.packed.row_format import RowFormat, decode_rows, encode_rows
from gristmill.pipelines.convert import convert as run
from gristmill.transforms import ConversionJob, PackOptions
from gristmill.transforms.conversion.take_output import open_to_append
from tests.order.schedules import bounds_of
from tests.rows.conversation_rows import Said, conversation
from tests.rows.packed_rows import batch_of, some_rows
from tests.support.datasets import convert
from tests.support.packed import documents, pack

ARRAYS = [
    *("inputs", "targets", "inputs_position", "targets_position"),
    *("inputs_segmentation", "targets_segmentation"),
]
MORE = ["targets_mask", "targets_weights", "inputs_mask", "labels"]
PLAIN = Said(7, 0, True, 1.0)  # A token of a row of plain text.
HOST = {"host": (0, 1)}


def token_by_token(rows, said, length, document_positions):
    out = {name: np.zeros((len(rows), length)) for name in (*ARRAYS, *MORE)}
    out["labels"] -= 100
    pieces = iter(said)
    for row, row_pieces in enumerate(rows):
        column = 0
        for number, (first, ids) in enumerate(row_pieces, 1):
            after = [*zip(ids, next(pieces), strict=True)][1:]
            for at, token in enumerate(ids):
                found = {"inputs": token, "inputs_segmentation": number}
                position = at + first * document_positions
                found |= dict.fromkeys(
                    ("inputs_position", "targets_position"), position
                )
                if at + 1 < len(ids):
                    found["targets"], then = after[at]
                    if then is not None and then.trained:
                        found |= {"targets_segmentation": number, "targets_mask": 1}
                        found |= {"targets_weights": then.weight, "labels": ids[at + 1]}
                        out["inputs_mask"][row, column + 1] = 1
                for name, value in found.items():
                    out[name][row, column] = value
                column += 1
    return out


@given(
    st.integers(0, 1 << 32),
    st.sampled_from([1, 2, 12]),
    st.sampled_from([2, 3]),
    st.sampled_from(["packed", "example", "chat", "mixed"]),
    st.booleans(),
)
def test_every_token_is_where_it_belongs(seed, length, id_bytes, kind, from_document):
    """Also in rows of conversations, alone and among rows of plain text."""
    chance = random.Random(seed)
    rows = some_rows(chance, length, id_bytes)
    form = RowFormat(length, id_bytes, "example" if kind == "example" else "packed")
    records, batch = encode_rows(form, batch_of(rows)), batch_of(rows)
    said = [[PLAIN] * size for size in batch.lengths.tolist()]
    if kind in ("chat", "mixed"):
        chats = [conversation(chance, len(tokens)) for tokens in said]
        ours = encode_rows(form, batch_of(rows, chats))
        begin = 0
        for row, end in enumerate(batch.row_ends.tolist()):
            if kind == "chat" or chance.random() < 0.5:
                records[row], said[begin:end] = ours[row], chats[begin:end]
            begin = end
    decode = loader.PackedRows(
        length=length,
        id_bytes=id_bytes,
        rows=form.rows,
        document_positions=from_document,
        names={name: name for name in MORE},
    )
    found = decode(records)
    expected = token_by_token(rows, said, length, from_document)
    assert [*found] == [*ARRAYS, *MORE]
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], name)
        dtype = np.float32 if name == "targets_weights" else np.int32
        assert (array.dtype, array.shape) == (dtype, (len(rows), length)), name
        # JAX takes it as it is, on CPUs.
        assert array.ctypes.data % 64 == 0 or not array.size
        array += 1  # It can be written to, and no other changes with it.


@given(st.sets(st.sampled_from([*ARRAYS, *MORE]), min_size=1), st.booleans())
def test_arrays_can_have_other_names_and_be_left_out(kept, renamed):
    names = dict.fromkeys([*ARRAYS, *MORE])
    names |= {name: name.upper() if renamed else name for name in kept}
    spans = MessageSpans.of_documents([[(0, 2, 3, 0, True, 0.5)], []])
    batch = batch_of([[(0, [1, 2]), (4, [3])]])._replace(spans=spans)
    records = encode_rows(RowFormat(4), batch)
    everything = loader.PackedRows(length=4, names={n: n for n in MORE})(records)
    batch = loader.PackedRows(length=4, names=names)(records)
    assert [*batch] == [names[name] for name in everything if name in kept]
    for name in kept:
        np.testing.assert_array_equal(batch[names[name]], everything[name])


def test_a_token_beyond_int32_names_its_row():
    rows = [[(0, [2**31 - 1, 70_000])], [(0, [7, 2**31 + 5])]]
    good, bad = encode_rows(RowFormat(2, 4), batch_of(rows))
    decode = loader.PackedRows(length=2, id_bytes=4)
    assert decode([good])["inputs"].tolist() == [[2**31 - 1, 70_000]]
    with pytest.raises(
        DecodeError, match=r"int32(.|\n)*got:      2147483653"
    ) as caught:
        decode([good, bad])
    assert caught.value.row == 1


ROWS = encode_rows(
    RowFormat(4), batch_of([[(0, [row, 1]), (row, [2])] for row in range(12)])
)


def written(path, **packed):
    """Writes rows; what is given is what the dataset says of them."""
    with Writer(path, records_per_shard=5) as writer:
        for record in ROWS:
            writer.write(record)
    if packed:
        named = {"vocabulary_size": 256, "method": "best-fit", "counts": PackedCounts()}
        stored = {"length": 4, "id_bytes": 2, "rows": "packed"}
        said(path, PackedSplit(**named | stored | packed).encode())
    return loader.open(path)


def said(path, packed):
    manifest = json.loads((path / "dataset.json").read_text())
    manifest["splits"]["train"]["packed"] = packed
    (path / "dataset.json").write_text(json.dumps(manifest))


def test_a_feed_names_the_record_that_is_no_row(tmp_path):
    data = written(tmp_path / "packed")  # It does not say what they are.
    batches = loader.global_batches(data, batch_size=4, shuffle="none")
    decode = loader.PackedRows(length=4, id_bytes=3)
    feed = batches.feed(decode=lambda records: decode(records), **HOST)
    with feed, pytest.raises(DecodeError, match=r"packed, record 0 (.|\n)*of 3 bytes"):
        next(feed)


def test_a_dataset_says_how_its_rows_are_stored(tmp_path):
    of, rows = loader.PackedRows.of, loader.PackedRows(length=4)
    data = written(tmp_path / "packed", length=4)
    more = {"document_positions": True, "names": {"targets": None}}
    assert of(data, data, **more) == loader.PackedRows(length=4, **more)
    assert of({"a": data, "b": data}) == rows
    other = written(tmp_path / "other", id_bytes=3, rows="example")
    wide = loader.PackedRows(length=4, id_bytes=3, rows="example")
    assert of(other, length=4) == wide
    written(tmp_path / "more", length=4)
    assert of(loader.open([tmp_path / "packed", tmp_path / "more"])) == rows
    mixed = loader.open([tmp_path / "packed", tmp_path / "other"])
    differs = r"other(.|\n)*expected: .*rows packed\n.*rows example"
    for datasets, options, message in (
        ([data], {"length": 8}, r"expected: length 8, (.|\n)*got:      length 4, "),
        ([data, other], {}, differs),
        ([mixed], {}, differs),
    ):
        with pytest.raises(InputError, match=message):
            of(*datasets, **options)
    manifest = json.loads((tmp_path / "more" / "dataset.json").read_text())
    said(tmp_path / "more", manifest["splits"]["train"]["packed"] | {"format": 3})
    with pytest.raises(FormatVersionError, match="packed rows"):
        of(loader.open(tmp_path / "more"))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    made = {
        "web": [documents(60, seed=1), documents(40, seed=2)],
        # Each shard ends with a row that is hardly filled.
        "code": [documents(3, seed=4 + number, mean=10) for number in range(30)],
    }
    plain = [np.arange(n, n + 32, dtype="<u2").tobytes() for n in range(37)]
    found = {
        name: pack(tmp_path_factory.mktemp(name), shards, length=32)
        for name, shards in made.items()
    }
    return found | {"plain": convert(tmp_path_factory.mktemp("plain"), [plain])}


@pytest.fixture(scope="module")
def opened(places):
    return {name: loader.open(place) for name, place in places.items()}


def feed_of(datasets, decode):
    return loader.global_batches(datasets, batch_size=4).feed(decode=decode, **HOST)


@pytest.mark.parametrize(
    "decode",
    [
        loader.TokenDecoder(length=32, stored="uint16"),
        loader.ExampleDecoder({"inputs": loader.FixedFeature("int64")}),
    ],
)
def test_decoders_of_other_records_are_refused(decode, opened, places):
    both = loader.open([places["plain"], places["web"]])
    mixed = {"a": opened["plain"], "b": opened["web"]}
    for datasets in (opened["web"], both, mixed):
        with pytest.raises(InputError, match="packed rows, which no") as refused:
            feed_of(datasets, decode)
        assert "loader.PackedRows.of(dataset)" in str(refused.value)
        assert places["web"] in str(refused.value)


def test_packed_rows_of_other_records_are_refused(opened, places):
    rows = loader.PackedRows(length=32, id_bytes=4)
    both = loader.open([places["web"], places["plain"]])
    mixed = {"a": opened["web"], "b": opened["plain"]}
    for make in (
        *(lambda each=each: feed_of(each, rows) for each in (both, mixed)),
        *(lambda each=each: loader.PackedRows.of(each) for each in (both, mixed)),
        lambda: feed_of(opened["plain"], rows),
    ):
        with pytest.raises(InputError, match="does not hold packed rows") as refused:
            make()
        assert places["plain"] in str(refused.value)
    assert "records as a conversion read them" in str(refused.value)
    # Files say nothing of their records: the first of them does.
    feed = feed_of(loader.open(glob.glob(f"{places['plain']}/*.array_record*")), rows)
    with pytest.raises(DecodeError, match="not a packed row") as refused, feed:
        next(feed)
    assert places["plain"] in str(refused.value)
    with pytest.raises(DecodeError, match="it begins otherwise") as refused:
        rows([b"a text of some words"])
    assert "1 to 32 pieces" in str(refused.value)


def test_files_of_packed_rows_are_decoded_by_who_knows_them(opened, places):
    files = loader.open(sorted(glob.glob(f"{places['web']}/*.array_record*")))
    found = []
    for data, decode in (
        (files, loader.PackedRows(length=32, id_bytes=4)),
        (opened["web"], loader.PackedRows.of(opened["web"])),
    ):
        with feed_of(data, decode) as feed:
            found.append(next(feed)["targets"])
    np.testing.assert_array_equal(*found)


def test_packed_rows_are_not_converted_nor_appended_to(places, tmp_path):
    place = {"output": str(tmp_path / "out"), "name": "d"}
    for options in ({}, {"pack": PackOptions(length=8, column="ids")}):
        job = ConversionJob(inputs=(places["web"],), **place, **options)
        with pytest.raises(InputError, match="the input holds packed rows") as refused:
            run([job], workers=1)
        assert "with gristmill pack" in str(refused.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="no records can be appended") as refused:
        open_to_append(places["web"], None)
    assert "loader.open([old, new])" in str(refused.value)


def test_weights_are_shares_of_tokens(opened):
    datasets = {name: opened[name] for name in ("web", "code")}
    shares = {"web": Fraction(7, 10), "code": Fraction(3, 10)}
    weights = loader.token_weights(datasets, {"web": 0.7, "code": "3/10"})
    means = {
        name: Fraction(data.facts.packed.tokens, len(data))
        for name, data in datasets.items()
    }
    tokens = {name: weights[name] * means[name] for name in datasets}
    assert sum(weights.values()) == 1
    assert tokens["web"] / sum(tokens.values()) == shares["web"]
    # A row of code holds far fewer tokens: it has far more than three rows of ten.
    assert weights["code"] > Fraction(38, 100)
    batches = loader.global_batches(datasets, batch_size=8, seed=3, weights=weights)
    share = f"{float(weights['web']):.2%}, code {float(weights['code']):.2%}"
    rows = f"seed 3, of rows web {share}, of tokens web 70.00%, code 30.00%>"
    assert repr(batches).endswith(rows)
    by_rows = batches.then(weights={"web": 7, "code": 3}, step=0)
    assert "of tokens web 78.06%, code 21.94%" in repr(by_rows)

    form, each = RowFormat(32, id_bytes=4), {}
    for name, data in datasets.items():
        ends, lengths, *_ = decode_rows(form, data[:])
        each[name] = np.add.reduceat(lengths, [0, *ends[:-1]], dtype=np.int64)
    mixture = batches.schedule.phases[0].mixture
    bounds = bounds_of(mixture)
    assert max(bounds) <= Fraction(1, 2)
    seen = dict.fromkeys(datasets, 0)
    for step in range(200):
        numbers, records = batches.indices(step)
        rows = 8 * (step + 1)
        for number, name in enumerate(datasets):
            seen[name] += int(each[name][records[numbers == number]].sum())
            # In rows, never more than the mixture's bound from the exact share.
            off = abs(mixture.counts(rows)[number] - rows * weights[name])
            assert off <= bounds[number]
    run = loader.token_run(batches, steps=200)
    for number, name in enumerate(datasets):
        # Whole epochs have exactly their tokens, and the last one mean rows.
        most = datasets[name].facts.packed.tokens * 0.05
        assert run.epochs[number] >= 2
        assert abs(seen[name] - run.tokens_of[number]) <= most
        # The promise, of mean rows: the share of tokens, but for the bound of rows.
        off = abs(run.tokens_of[number] - shares[name] * run.tokens)
        assert off <= 2 * sum(bounds) * 32 + 2
    assert seen["web"] / sum(seen.values()) == pytest.approx(0.7, abs=0.005)
