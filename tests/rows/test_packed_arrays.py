"""Packed rows in feeds: arrays token by token, shares of tokens, other records."""

import glob
import json
import pathlib
import random
import re
import shutil
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import DecodeError, FormatVersionError, InputError
from gristmill.dataset.packed.row_format import RowFormat, encode_rows
from gristmill.transforms.conversion.take_output import open_to_append
from tests.rows.command import run
from tests.rows.packed_rows import Said, batch_of, conversation, some_rows
from tests.support.datasets import convert
from tests.support.packed import documents, pack
from tests.support.told import told

ARRAYS = [
    "inputs",
    "targets",
    "inputs_position",
    "targets_position",
    "inputs_segmentation",
    "targets_segmentation",
    "targets_mask",
    "targets_weights",
    "inputs_mask",
    "labels",
]
PLAIN = Said(7, 0, True, 1.0)  # A token of a row of plain text.


def token_by_token(rows, said, length, document_positions):
    out = {name: np.zeros((len(rows), length)) for name in ARRAYS}
    out["labels"] -= 100
    pieces = iter(said)
    for row, row_pieces in enumerate(rows):
        column = 0
        for number, (first, ids) in enumerate(row_pieces, 1):
            after = [*zip(ids, next(pieces), strict=True)][1:]
            for at, token in enumerate(ids):
                position = at + first * document_positions
                found = {"inputs": token, "inputs_segmentation": number}
                found |= {"inputs_position": position, "targets_position": position}
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
    # Some have other names, some are left out.
    names = {name: chance.choice((name, name, name.upper(), None)) for name in ARRAYS}
    names["inputs"] = "inputs"
    form = {"length": length, "id_bytes": id_bytes, "rows": form.rows}
    decode = loader.PackedRows(**form, document_positions=from_document, names=names)
    found = decode(records)
    expected = token_by_token(rows, said, length, from_document)
    assert [*found] == [name for name in names.values() if name]
    for name in filter(names.get, ARRAYS):
        array = found[names[name]]
        np.testing.assert_array_equal(array, expected[name], name)
        dtype = np.float32 if name == "targets_weights" else np.int32
        assert (array.dtype, array.shape) == (dtype, (len(rows), length)), name
        # JAX takes it as it is, on CPUs.
        assert array.ctypes.data % 64 == 0 or not array.size
        array += 1  # It can be written to, and no other changes with it.


def test_a_token_beyond_int32_names_its_row():
    rows = [[(0, [2**31 - 1, 70_000])], [(0, [7, 2**31 + 5])]]
    good, bad = encode_rows(RowFormat(2, 4), batch_of(rows))
    decode = loader.PackedRows(length=2, id_bytes=4)
    assert decode([good])["inputs"].tolist() == [[2**31 - 1, 70_000]]
    with told(DecodeError, match=r"int32(.|\n)*got: +2147483653", row=1):
        decode([good, bad])


def test_a_dataset_says_how_its_rows_are_stored(tmp_path):
    def packed(name, **options):
        return loader.open(pack(tmp_path / name, [documents(9, seed=1)], **options))

    of, rows = loader.PackedRows.of, loader.PackedRows(length=4)
    data = packed("narrow", length=4, vocabulary_size=60_000)
    more = {"document_positions": True, "names": {"targets": None}}
    assert of(data, data, **more) == loader.PackedRows(length=4, **more)
    assert of({"a": data, "b": data}) == rows
    other = packed("other", length=4, vocabulary_size=1 << 17, rows="example")
    wide = loader.PackedRows(length=4, id_bytes=3, rows="example")
    assert of(other, length=4) == wide
    mixed = loader.open([data.path, other.path])
    differs = r"other(.|\n)*expected: .*rows packed\n.*rows example"
    for datasets, options, message in (
        ([data], {"length": 8}, r"expected: length 8, (.|\n)*got:      length 4, "),
        ([data, other], {}, differs),
        ([mixed], {}, differs),
    ):
        with pytest.raises(InputError, match=message):
            of(*datasets, **options)
    place = pathlib.Path(data.path, "dataset.json")
    manifest = json.loads(place.read_text())
    manifest["splits"]["train"]["packed"]["format"] = 3
    place.write_text(json.dumps(manifest))
    with told(FormatVersionError, "packed rows"):
        of(loader.open(data.path))


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    plain = [np.arange(n, n + 32, dtype="<u2").tobytes() for n in range(37)]
    made = {
        "web": [documents(60, seed=1), documents(40, seed=2)],
        # Each shard ends with a row that is hardly filled.
        "code": [documents(3, seed=4 + number, mean=10) for number in range(30)],
    }
    return {"plain": convert(tmp_path_factory.mktemp("plain"), [plain])} | {
        name: pack(tmp_path_factory.mktemp(name), shards, length=32)
        for name, shards in made.items()
    }


@pytest.fixture(scope="module")
def opened(places):
    return {name: loader.open(place) for name, place in places.items()}


def feed_of(datasets, decode):
    batches = loader.global_batches(datasets, batch_size=4)
    return batches.feed(decode=decode, host=(0, 1))


TOKENS = loader.TokenDecoder(length=32, stored="uint16")
EXAMPLES = loader.ExampleDecoder({"inputs": loader.FixedFeature("int64")})
ROWS = loader.PackedRows(length=32, id_bytes=4)


@pytest.mark.parametrize("decode", [TOKENS, EXAMPLES, ROWS], ids=["a", "b", "rows"])
def test_decoders_of_other_records_are_refused(decode, opened, places, caplog):
    right = "web" if decode is ROWS else "plain"
    wrong = "plain" if decode is ROWS else "web"
    loader.open([places["web"], places["code"]])
    assert not caplog.records
    both = loader.open([places[right], places[wrong]])
    said = r"joined with other records: .*/web.* has rows, .*/plain.* has none"
    assert re.search(said, caplog.text)
    mixed = {"a": opened[right], "b": opened[wrong]}
    for datasets in (opened[wrong], both, mixed):
        hint = "gristmill pack" if decode is ROWS else "loader.PackedRows.of(dataset)"
        with told(InputError, "packed rows", places[wrong], hint):
            feed_of(datasets, decode)
        if decode is ROWS:
            with told(InputError, "does not hold packed rows"):
                loader.PackedRows.of(datasets)


def test_files_of_packed_rows_are_decoded_by_who_knows_them(opened, places):
    """Files say nothing of their records: the first of them does."""
    files, plain = (
        loader.open(sorted(glob.glob(f"{places[name]}/*.array_record*")))
        for name in ("web", "plain")
    )
    with pytest.raises(InputError, match=r"files do not say[\s\S]*PackedRows\(length"):
        loader.PackedRows.of(files)
    of_dataset = loader.PackedRows.of(opened["web"])
    with feed_of(files, ROWS) as feed, feed_of(opened["web"], of_dataset) as other:
        np.testing.assert_array_equal(next(feed)["targets"], next(other)["targets"])
    feed = feed_of(plain, ROWS)
    with feed, told(DecodeError, "not a packed row", places["plain"]):
        next(feed)
    # Behind a function nobody knows what it decodes.
    narrow = loader.PackedRows(length=32, id_bytes=3)
    feed = feed_of(opened["web"], lambda records: narrow(records))
    named = r"web.*, record \d+ (.|\n)*of 3 bytes"
    with feed, pytest.raises(DecodeError, match=named):
        next(feed)


def test_packed_rows_are_not_converted_nor_appended_to(places, tmp_path):
    files = f"{places['web']}/*.array_record*"
    for command in ("convert", "pack --length 8 --column ids"):
        for source in (places["web"], files):
            said = run(f"{command} {source} {tmp_path}/out", code=2)
            assert "the input holds packed rows" in said
            assert "with gristmill pack" in said
    assert not (tmp_path / "out").exists()
    # What another tool, or a damaged disk, has left there says nothing of the files.
    (tmp_path / "in").mkdir()
    for path in glob.glob(files):
        shutil.copy(path, tmp_path / "in")
    for content in ("{}", "{"):
        (tmp_path / "in" / "dataset.json").write_text(content)
        run(f"convert {tmp_path}/in/*.array_record* {tmp_path}/{content} --name d")
        assert len(loader.open(tmp_path / content)) == len(loader.open(places["web"]))
    with told(InputError, "no records can be appended", "loader.open([old, new])"):
        open_to_append(places["web"], None)


@pytest.mark.parametrize(
    "take",
    [
        loader.PackedRows.of,
        loader.ExampleDecoder.of,
        lambda given: loader.token_weights({"a": given}, {"a": 1}),
        lambda given: loader.global_batches(given, batch_size=1),
    ],
    ids=["rows", "examples", "weights", "batches"],
)
def test_what_was_not_opened_is_refused(opened, take):
    for taken, cure in (("web", "open it first"), ([opened["web"]] * 2, "by name")):
        with pytest.raises(InputError, match=f"not a dataset(.|\n)*to do:.*{cure}"):
            take(taken)
    with told(InputError, "give one dataset"):
        loader.ExampleDecoder.of({"web": opened["web"]})


def test_weights_are_shares_of_tokens(opened):
    datasets = {name: opened[name] for name in ("web", "code")}
    weights = loader.token_weights(datasets, {"web": 0.7, "code": "3/10"})
    tokens = {
        name: weights[name] * Fraction(data.facts.packed.tokens, len(data))
        for name, data in datasets.items()
    }
    assert sum(weights.values()) == 1
    assert tokens["web"] / sum(tokens.values()) == Fraction(7, 10)
    # A row of code holds far fewer tokens: it has far more than three rows of ten.
    assert weights["code"] > Fraction(38, 100)
    batches = loader.global_batches(datasets, batch_size=8, seed=3, weights=weights)
    share = f"{float(weights['web']):.2%}, code {float(weights['code']):.2%}"
    rows = f"seed 3, of rows web {share}, of tokens web 70.00%, code 30.00%>"
    assert repr(batches).endswith(rows)
    by_rows = batches.then(weights={"web": 7, "code": 3}, step=0)
    assert "of tokens web 78.06%, code 21.94%" in repr(by_rows)

    seen = np.zeros(2, int)
    decode = loader.PackedRows.of(*datasets.values())
    for step in range(200):
        filled = decode(batches.read(step))["inputs_segmentation"] > 0
        np.add.at(seen, batches.indices(step).datasets, filled.sum(axis=1))
    assert seen[0] / seen.sum() == pytest.approx(0.7, abs=0.005)
    # Their expected numbers are those of mean rows.
    run = loader.token_run(batches, steps=200)
    assert [*run.tokens_of] == pytest.approx(seen.tolist(), rel=0.02)
