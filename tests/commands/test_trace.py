"""Orders said by options and states, and traces to the bytes of a source, and back.

What a command says of a row is compared with what the loader gives there, and what it
says of a record or a document with all rows of the first steps.
"""

import gzip
import json
import pathlib
import re
import subprocess
import sys

import pytest

from gristmill import loader
from gristmill.dataset.formats.tfrecord_frames import encode_frame
from gristmill.loader.data.batches import row_at
from gristmill.loader.feed.state import state_of
from gristmill.transforms.sources.formats import RecordOptions
from tests.commands.conftest import json_of, refused, rows_of, run
from tests.order.packed_datasets import (
    documents,
    packing,
    record,
    tokens_of,
    write_frames,
)
from tests.support import conversion, datasets
from tests.support.records import frames_of
from tests.support.removals import remove_from

SIZE = 6  # Rows of a batch.


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Plain `a`, of two splits and two editions, and `b`; packed `p`, `q` and `r`."""
    root = tmp_path_factory.mktemp("order")
    for name in "abpqr":
        (root / name).symlink_to(f"of-{name}/out")
    for name, split, count in (
        ("a", "train", 17),
        ("a", "test", 8),
        ("b", "train", 13),
    ):
        records = [f"{name} {split} {n}".encode() for n in range(count)]
        files = [records[:5], records[5:]]
        datasets.convert(root / f"of-{name}", files, split=split, name=name)
    (root / "new.tfrecord").write_bytes(frames_of([b"new %d" % n for n in range(7)]))
    run(f"append {root}/a {root}/new.tfrecord --split=train --workers=1")
    # Rows of `q` and of `r` have fewer tokens than those of `p`.
    for name, lengths in (("p", (32,)), ("q", (17,)), ("r", (9, 30))):
        texts = [record(n, lengths[n % len(lengths)]) for n in range(20)]
        write_frames(root / f"{name}.tfrecord", texts)
        given = (root / f"{name}.tfrecord", root / f"of-{name}" / "out")
        conversion.convert(conversion.job_of(*given, pack=packing()))
    return root


@pytest.fixture(autouse=True)
def _in_root(root, monkeypatch):
    monkeypatch.chdir(root)


def opened(*names, **options):
    return loader.open([*names] if len(names) > 1 else names[0], **options)


def ordered(datasets, **order):
    return loader.global_batches(datasets, batch_size=SIZE, **order)


def of_tokens(datasets, tokens=None, **shares):
    weights = loader.token_weights(datasets, shares, tokens_per_row=tokens)
    return ordered(datasets, weights=weights, seed=5)


BLOCKS = loader.BlockShuffle(block_records=2, window_blocks=3)
JOINED = "a b --split train --edition 1,last"
NAMES = "x=a y=a --split x=test,y=train --edition y=1"
# Options of commands, and what makes the same batches in Python.
WAYS = {
    "a --split train --seed 5": lambda: ordered(opened("a", split="train"), seed=5),
    "b --shuffle block --block-records 2 --window-blocks 3": (
        lambda: ordered(opened("b"), shuffle=BLOCKS)
    ),
    "b=b --seed 5": lambda: ordered({"b": opened("b")}, seed=5),
    "a --split test,train": lambda: ordered(opened("a", split=["test", "train"])),
    JOINED: lambda: ordered(
        opened("a", "b", split=["train", "train"], edition=[1, None])
    ),
    NAMES: lambda: ordered(
        {"x": opened("a", split="test"), "y": opened("a", split="train", edition=1)}
    ),
    "p=p q=q --weights p=0.6,q=0.4": lambda: ordered(
        {"p": opened("p"), "q": opened("q")}, weights={"p": "0.6", "q": "0.4"}
    ),
    "p=p b=b --token-weights p=0.6,b=0.4 --tokens-per-row b=9 --seed 5": (
        lambda: of_tokens({"p": opened("p"), "b": opened("b")}, {"b": 9}, p=0.6, b=0.4)
    ),
    "b=b p=p --token-weights p=1,b=1 --tokens-per-row 9 --seed 5": (
        lambda: of_tokens({"b": opened("b"), "p": opened("p")}, 9, p=1, b=1)
    ),
    "pq=p pq=r q=q --token-weights pq=2,q=1 --seed 5": (
        lambda: of_tokens({"pq": opened("p", "r"), "q": opened("q")}, pq=2, q=1)
    ),
}


def changed():
    """Returns batches of which everything changes at a step, with a joined dataset."""
    before = of_tokens({"pq": opened("p"), "q": opened("q")}, pq=2, q=1)
    more = before.then({"pq": opened("p", "r")}, step=1)
    return more.then(weights={"pq": 1, "q": 3}, step=2).then(
        batch_size=SIZE + 1, step=3
    )


def check(batches, order):
    """Compares what the command says with the batches."""
    steps = range(min(batches.steps or 5, 5))
    rows = {
        (step, row): row_at(batches, step, row)
        for step in steps
        for row in range(len(batches.schedule.positions(step)))
    }
    for step, row in ((0, 0), (2, 4), max(rows)):
        found = json_of(f"trace {order} --step {step} --row {row}")
        where = batches.locate(step, row)
        for name in ("dataset", "record", "shard", "record_in_shard", "epoch"):
            assert found[name] == getattr(where, name), (step, row, name)
    seen = rows[2, 4]
    of = f"--of {seen.name}" if batches.names else ""
    found = json_of(f"trace {order} --records {seen.record} {of} --stop-epoch 9")
    expected = {place for place, one in rows.items() if one[1:4:2] == seen[1:4:2]}
    assert expected == {
        (one["step"], one["row"]) for one in found if one["step"] in steps
    }


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", WAYS)
def test_options_mean_what_the_arguments_of_the_loader_mean(options):
    check(WAYS[options](), f"{options} --batch-size {SIZE}")


@pytest.mark.parametrize(
    ("datasets", "made"),
    [
        (JOINED, WAYS[JOINED]),
        (NAMES, WAYS[NAMES]),
        pytest.param("pq=p pq=r q=q", changed, marks=pytest.mark.slow),
    ],
)
def test_a_state_means_the_same(tmp_path, datasets, made):
    batches, state = made(), tmp_path / "state.json"
    state.write_text(json.dumps(state_of(batches, 1)))
    check(batches, f"{datasets} --state {state}")


def test_a_state_that_is_not_of_the_datasets(tmp_path):
    state = tmp_path / "state.json"
    batches = WAYS["p=p q=q --weights p=0.6,q=0.4"]()
    state.write_text(json.dumps(state_of(batches, 0)))
    at = f"--state {state} --step 0 --row 0"
    assert "datasets with other names" in refused(f"trace p {at}")
    assert "does not match the records or the order" in refused(f"trace p=r q=q {at}")


def test_a_number_can_be_that_of_an_edition_before(tmp_path):
    path = datasets.convert(tmp_path, [[b"%d" % n for n in range(12)]])
    before = ordered(opened(path))
    remove_from(path, [3])
    batches, state = before.then(opened(path), step=1), tmp_path / "state.json"
    state.write_text(json.dumps(state_of(batches, 1)))
    line = f"trace {path} --state {state} --records 5 --stop-epoch 2"
    assert "other numbers in an earlier phase" in refused(line)
    found = [(one["step"], one["row"]) for one in json_of(f"{line} --edition 1")]
    seen = batches.find(5, edition=1, stop_epoch=2)
    assert found == [(step, row) for _, step, row in seen]


def test_a_path_with_an_equals_sign_is_a_path(root, tmp_path):
    """Of one dataset, or of several that are joined."""
    at = f"--batch-size {SIZE} --step 5 --row 3"
    for day, name in enumerate("pr"):
        (tmp_path / f"day={day}").symlink_to(root / name)
    first, second = (f"{tmp_path}/day={day}" for day in range(2))
    for paths, names in ((first, "p"), (f"{first} {second}", "pr")):
        expected = ordered(opened(*names)).indices(5)[3]
        assert json_of(f"trace {paths} {at}")["record"] == expected
    said = refused(f"trace {first} {second} {at} --weights a=1")
    assert "--weights is for a mixture" in said
    assert "need names" in refused(f"trace p=p {first} {at}")


# --- Records, one or several, with their sources and where they are seen.


def test_a_record_alone_needs_no_order(root):
    out = run("trace a --split train --records 19 --show")
    dataset = opened("a", split="train")
    shard = dataset.shard(int(dataset.find([19])[0][0])).path
    assert f"record    19\n  shard     {shard}\n" in out.stdout
    assert f"source    {root}/new.tfrecord" in out.stdout
    assert "record 19:" in out.stdout
    assert "--batch-size N" in out.stderr
    for number in (2, 7, 19):
        found = json_of(f"trace a --split train --records {number}")
        assert (found["record"], "epoch" in found) == (number, False)
        source = pathlib.Path(found["source_path"]).read_bytes()
        rest = source[found["source_offset_bytes"] :]
        assert rest.startswith(encode_frame(dataset[number]))
    found = json_of("trace x=a y=b --split train --records 12 --of y")
    assert (found["dataset"], found["record"]) == ("y", 12)


def test_several_records():
    order = f"trace b --batch-size {SIZE} --seed 7 --records"
    each = [f"record {n}\n{run(f'{order} {n}').stdout}" for n in (3, 7, 8)]
    assert run(f"{order} 3,7:9").stdout == "".join(each)
    assert [len(one) for one in rows_of(f"{order} 3,7:9")] == [1, 1, 1]
    assert [one["record"] for one in rows_of("trace b --records 3,7:9")] == [3, 7, 8]
    assert rows_of(f"{order} 7 --show")[1]["record"] == 7
    seen = json_of(f"{order} 7 --first-epoch 2 --stop-epoch 4")
    assert [sighting["epoch"] for sighting in seen] == [2, 3]
    text = run(f"{order} 7 --first-epoch 2").stdout
    assert text == "step {step:,}, row {row:,}: epoch {epoch:,}\n".format(**seen[0])


def test_a_record_of_the_remainder_is_not_seen():
    order = "trace b --batch-size 8 --shuffle none --epochs 1 --records"
    left_out = "last batch that is not full is left out"
    assert left_out in run(f"{order} 10").stdout
    assert run(f"{order} 10 --json").stdout == "[]\n"
    # Epochs after the last one have no batch at all: the message is true there, too.
    late = run(f"{order} 3 --first-epoch 5").stdout
    assert late.startswith("not seen in these epochs")
    kept = run(f"{order} 10 --keep-remainder").stdout
    assert kept == "step 1, row 2: epoch 0\n"


ROWS = {"jsonl": b'{"id": %d}\n', "csv": b'%d,"two\nlines"\n'}


def table(folder, name, compress=bytes):
    """Makes a dataset `out` of 60 rows `in`, with a bad line before each twentieth."""
    lines = [ROWS[name] % number for number in range(60)]
    if name == "csv":
        lines[0] = b"id,text\n" + lines[0]
    for number in (20, 40):
        lines[number] = b"bad\n\n" + lines[number]
    data = b"".join(lines)
    (folder / "in").write_bytes(compress(data))
    options = f"--num-shards 4 --input-format {name} --on-corrupt skip --workers 1"
    run(f"convert {folder / 'in'} {folder / 'out'} {options}")
    return data


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("name", ROWS)
def test_the_line_of_a_record_is_named(tmp_path, name, compress):
    data = table(tmp_path, name, compress)
    for row in (0, 19, 20, 45, 59):
        found = json_of(f"trace {tmp_path}/out --records {row}")
        offset = found["source_offset_bytes"]
        assert data[offset:].startswith(ROWS[name] % row)
        assert data.count(b"\n", 0, offset) + 1 == found["source_line"]
        assert found["source_note"] is None
    said = run(f"trace {tmp_path}/out --records 0").stdout
    assert re.search(r"^ {12}line \d, byte offset ", said, re.MULTILINE)


def test_the_line_of_an_empty_record_is_named(tmp_path):
    (tmp_path / "in.txt").write_text("\n\nlast\n")
    run(f"convert {tmp_path}/in.txt {tmp_path}/out --workers 1")
    assert json_of(f"trace {tmp_path}/out --records 1")["source_line"] == 2


def test_a_source_that_is_gone_or_changed_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = table(pathlib.Path(), "jsonl")
    assert json_of("trace out --records 7")["source_line"] == 8
    for change in (
        lambda: (tmp_path / "in").write_bytes(data[5:] + data[:5]),
        (tmp_path / "in").unlink,
        lambda: monkeypatch.chdir("/"),
    ):
        change()
        found = json_of(f"trace {tmp_path}/out --records 33")
        assert found["source_path"] == "in"
        assert "source_line" not in found
    assert "not found from here" in found["source_note"]


@pytest.mark.slow
def test_it_imports_no_heavy_library():
    code = (
        "import atexit, sys\nfrom gristmill.pipelines.commands.main import main\n"
        "heavy = {'apache_beam', 'tensorflow', 'jax', 'grain'}\n"
        "atexit.register(lambda: print(heavy & {*sys.modules}))\n"
        "main('trace b --batch-size=4 --step=0 --row=0'.split())\n"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "frame at byte offset" in out
    assert out.splitlines()[-1] == "set()"


# --- Documents: the records or rows that were made of a place.


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_what_was_made_of_a_place(tmp_path, compress, is_packed):
    lines = documents(20, seed=3)
    path, output = tmp_path / "in", tmp_path / "out"
    path.write_bytes(compress(b"".join(line + b"\n" for line in lines)))
    options = {"records": RecordOptions(input_format="text")}
    if is_packed:
        options["pack"] = packing()
    conversion.convert(conversion.job_of(path, output, **options))

    of = f"trace {output} --document {path}"
    rows = at = 0
    for number, line in enumerate(lines):
        if is_packed and not len(tokens_of(line)):
            refused(f"{of}@{at}")
        else:
            found = rows_of(f"{of}@{at}")
            assert found == rows_of(f"{of}@line:{number + 1}")
            for row in found:
                (piece,) = row.get("pieces", [row])
                assert piece["source_path"] == str(path)
                assert piece["source_offset_bytes"] == at
                assert is_packed or row["record"] == number
            rows += len(found)
        at += len(line) + 1
    assert rows > 10
    for wrong, what in (
        ("1", "no document begins there"),
        ("line:0", "the file has no such line"),
        ("line:10000", "the file has no such line"),
        ("x", "names no place of a file"),
    ):
        assert what in refused(f"{of}@{wrong}")
    assert "no rows were made of such a file" in refused(f"{of}.other@line:3")


def test_where_a_document_is_seen():
    batches = loader.global_batches(opened("r"), batch_size=4, seed=7)
    piece = batches.locate(3, 1).pieces[0]
    place = f"{piece.source_path}@{piece.source_offset_bytes}"
    line = f"trace r --batch-size 4 --seed 7 --document {place} --stop-epoch 3"
    (document,) = json_of(line)
    seen = {"epoch": 0, "step": 3, "row": 1}
    found = next(one for one in document["pieces"] if seen in one["sightings"])
    assert len(found["sightings"]) == 3
    text = run(line).stdout.splitlines()
    assert text[2].strip() == f"document {document['document']} of the shard"
    assert "            step 3, row 1: epoch 0" in text
