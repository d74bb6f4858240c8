"""Orders said by options and states, and traces to the bytes of a source, and back.

What a command says of a row is compared with what the loader gives there, and what it
says of a record or a document with all rows of the first steps.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from gristmill import loader
from gristmill.dataset.formats.tfrecord_frames import encode_frame
from gristmill.loader.data.batches import row_at
from gristmill.loader.feed.state import state_of
from gristmill.transforms.sources.formats import RecordOptions
from tests.commands.conftest import json_of, refused, rows_of, run
from tests.commands.test_view import content_of
from tests.conversion.format_files import COMPRESS
from tests.conversion.line_files import csv_of, jsonl_of
from tests.conversion.line_files import rows_of as table_of
from tests.order.packed_datasets import (
    documents,
    packing,
    record,
    tokens_of,
    write_frames,
)
from tests.support import conversion, datasets
from tests.support.records import frames_of

SIZE = 6  # Rows of a batch.


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Plain `a`, of two splits and two editions, and `b`; packed `p`, `q` and `r`."""
    root = tmp_path_factory.mktemp("order")
    for name, split, count in (
        ("a", "train", 17),
        ("a", "test", 8),
        ("b", "train", 13),
    ):
        records = [f"{name} {split} {n}".encode() for n in range(count)]
        datasets.convert(
            root / name, [records[:5], records[5:]], split=split, name=name
        )
    (root / "new.tfrecord").write_bytes(frames_of([b"new %d" % n for n in range(7)]))
    run("append", root / "a/out", root / "new.tfrecord", "--split=train", "--workers=1")
    # Rows of `q` and of `r` have fewer tokens than those of `p`.
    for name, lengths in (("p", (32,)), ("q", (17,)), ("r", (9, 30))):
        texts = [record(n, lengths[n % len(lengths)]) for n in range(20)]
        write_frames(root / f"{name}.tfrecord", texts)
        given = (root / f"{name}.tfrecord", root / name / "out")
        conversion.convert(conversion.job_of(*given, pack=packing()))
    return root


class Way(NamedTuple):
    """A way to make batches: in Python, and by options of a command."""

    made: Callable[[Callable[..., loader.Dataset]], loader.GlobalBatches]
    options: str


def one(opened, **order):
    return loader.global_batches(opened, batch_size=SIZE, **order)


def of_tokens(opened, tokens=None, **shares):
    weights = loader.token_weights(opened, shares, tokens_per_row=tokens)
    return one(opened, weights=weights, seed=5)


WAYS = {
    "seed": Way(
        lambda o: one(o("a", split="train"), seed=5), "a --split train --seed 5"
    ),
    "blocks": Way(
        lambda o: one(
            o("b"), shuffle=loader.BlockShuffle(block_records=2, window_blocks=3)
        ),
        "b --shuffle block --block-records 2 --window-blocks 3",
    ),
    "remainder": Way(
        lambda o: one(o("b"), epochs=2, drop_remainder=False),
        "b --epochs 2 --keep-remainder",
    ),
    "splits": Way(
        lambda o: one(o("a", split=["test", "train"])), "a --split test,train"
    ),
    "joined": Way(
        lambda o: one(o("a", "b", split=["train", "train"], edition=[1, None])),
        "a b --split train --edition 1,last",
    ),
    "rows": Way(
        lambda o: one({"p": o("p"), "q": o("q")}, weights={"p": "0.6", "q": "0.4"}),
        "p=p q=q --weights p=0.6,q=0.4",
    ),
    "tokens of others": Way(
        lambda o: of_tokens({"p": o("p"), "b": o("b")}, {"b": 9}, p="0.6", b="0.4"),
        "p=p b=b --token-weights p=0.6,b=0.4 --tokens-per-row b=9 --seed 5",
    ),
    "tokens of all": Way(
        lambda o: of_tokens({"b": o("b"), "p": o("p")}, 9, p=1, b=1),
        "b=b p=p --token-weights p=1,b=1 --tokens-per-row 9 --seed 5",
    ),
    "a name twice": Way(
        lambda o: of_tokens({"pq": o("p", "r"), "q": o("q")}, pq=2, q=1),
        "pq=p pq=r q=q --token-weights pq=2,q=1 --seed 5",
    ),
    "names": Way(
        lambda o: one(
            {"x": o("a", split="test"), "y": o("a", split="train", edition=1)}
        ),
        "x=a y=a --split x=test,y=train --edition y=1",
    ),
    "of one": Way(lambda o: one({"b": o("b")}, seed=5), "b=b --seed 5"),
}


def changed(open_):
    """Returns batches of which everything changes at a step, with a joined dataset."""
    before = of_tokens({"pq": open_("p"), "q": open_("q")}, pq=2, q=1)
    more = before.then({"pq": open_("p", "r")}, step=1)
    return more.then(weights={"pq": 1, "q": 3}, step=2).then(
        batch_size=SIZE + 1, step=3
    )


@pytest.fixture
def opened(root):
    def open_(*names, **options):
        paths = [str(root / name / "out") for name in names]
        return loader.open(paths if len(paths) > 1 else paths[0], **options)

    return open_


def given(root, options):
    """Returns options whose datasets are paths."""
    first, *rest = options.split(" --")
    names = [(name.rpartition("=")[::2]) for name in first.split()]
    paths = [f"{name}{'=' * bool(name)}{root / path / 'out'}" for name, path in names]
    return [*paths, *(word for part in rest for word in f"--{part}".split())]


def check(batches, order, folder):
    """Compares what all commands say with the batches."""
    steps = range(min(batches.steps or 5, 5))
    rows = {
        (step, row): row_at(batches, step, row)
        for step in steps
        for row in range(len(batches.schedule.positions(step)))
    }
    for step, row in ((0, 0), (2, 4), max(rows)):
        found = json_of("trace", *order, "--step", step, "--row", row)
        where = batches.locate(step, row)
        for name in ("dataset", "record", "shard", "record_in_shard", "epoch"):
            assert found[name] == getattr(where, name), (step, row, name)
    seen = rows[2, 4]
    of = ("--of", seen.name) if batches.names else ()
    found = json_of("trace", *order, "--records", seen.record, *of, "--stop-epoch", 9)
    expected = {place for place, one in rows.items() if one[1:4:2] == seen[1:4:2]}
    assert expected == {
        (one["step"], one["row"]) for one in found if one["step"] in steps
    }
    run("view", *order, "--html", folder / "page.html", "--steps", 2)
    shown = content_of(folder / "page.html")["steps"]["2"]["rows"]
    assert [(one["of"], one["record"]) for one in shown] == [
        (one.name if batches.names else "", one.record)
        for (step, _), one in rows.items()
        if step == 2
    ]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("way", WAYS)
def test_options_mean_what_the_arguments_of_the_loader_mean(
    root, opened, tmp_path, way
):
    order = (*given(root, WAYS[way].options), "--batch-size", SIZE)
    check(WAYS[way].made(opened), order, tmp_path)


@pytest.mark.parametrize(
    ("made", "options"),
    [
        (WAYS["joined"].made, "a b --split train --edition 1,last"),
        (WAYS["names"].made, "x=a y=a --split x=test,y=train --edition y=1"),
        pytest.param(changed, "pq=p pq=r q=q", marks=pytest.mark.slow),
    ],
)
def test_a_state_means_the_same(root, opened, tmp_path, made, options):
    batches, state = made(opened), tmp_path / "state.json"
    state.write_text(json.dumps(state_of(batches, 1)))
    check(batches, (*given(root, options), "--state", state), tmp_path)


def test_a_state_that_is_not_of_the_datasets(root, opened, tmp_path):
    state = tmp_path / "state.json"
    at = ("--state", state, "--step", 0, "--row", 0)
    named = given(root, "p=p q=q")

    def said(*order):
        return refused("trace", *order, *at)

    state.write_text(json.dumps(state_of(WAYS["rows"].made(opened), 0)))
    assert "datasets with other names" in said(root / "p/out")
    assert "does not match the records or the order" in said(
        *given(root, "p=r q=q"),
    )
    assert "exclude each other" in said(*named, "--seed", "1", "--epochs", "2")
    for text, message in (
        ('{"version": 1, "step": 0}', "is not as it was written"),
        ("{", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
    ):
        state.write_text(text)
        assert message in said(*named)


def test_a_path_with_an_equals_sign_is_a_path(root, opened, tmp_path):
    """Of one dataset, or of several that are joined."""
    at = ("--batch-size", SIZE, "--step", 5, "--row", 3)
    for day, name in enumerate("pr"):
        os.symlink(root / name / "out", tmp_path / f"day={day}")
    days = [f"{tmp_path}/day={day}" for day in range(2)]
    for paths, names in ((days[:1], "p"), (days, "pr")):
        expected = one(opened(*names)).indices(5)[3]
        assert json_of("trace", *paths, *at)["record"] == expected
    said = refused("trace", *days, *at, "--weights", "a=1")
    assert "--weights is for a mixture" in said
    assert "need names" in refused("trace", f"p={root}/p/out", days[0], *at)


# --- Records, one or several, with their sources and where they are seen.


def test_a_record_alone_needs_no_order(root, opened):
    place = (root / "a/out", "--split", "train", "--records")
    out = run("trace", *place, 19, "--show")
    dataset = opened("a", split="train")
    shard = dataset.shard(int(dataset.find([19])[0][0])).path
    assert f"record    19\n  shard     {shard}\n" in out.stdout
    assert f"source    {root}/new.tfrecord" in out.stdout
    assert "record 19:" in out.stdout
    assert "--batch-size N" in out.stderr
    found = json_of("trace", *place, 19)
    assert (found["record"], "epoch" in found) == (19, False)
    for number in (2, 7, 19):
        found = json_of("trace", *place, number)
        source = pathlib.Path(found["source_path"]).read_bytes()
        rest = source[found["source_offset_bytes"] :]
        assert rest.startswith(encode_frame(dataset[number]))
    named = (f"x={root}/a/out", f"y={root}/b/out", "--split", "train")
    found = json_of("trace", *named, "--records", 12, "--of", "y")
    assert (found["dataset"], found["record"]) == ("y", 12)
    assert "--of with one of x, y" in refused("trace", *named, "--records", 12)


def test_several_records(root):
    place = (root / "b/out", "--batch-size", SIZE, "--seed", 7, "--records")
    alone = [run("trace", *place, number).stdout for number in (3, 7, 8)]
    headed = [f"record {n}\n{one}" for n, one in zip((3, 7, 8), alone, strict=True)]
    assert run("trace", *place, "3,7:9").stdout == "".join(headed)
    assert [len(one) for one in rows_of("trace", *place, "3,7:9")] == [1, 1, 1]
    sources = rows_of("trace", root / "b/out", "--records", "3,7:9")
    assert [one["record"] for one in sources] == [3, 7, 8]
    shown = rows_of("trace", *place, 7, "--show")
    assert shown[1]["record"] == 7
    seen = json_of("trace", *place, 7, "--first-epoch", 2, "--stop-epoch", 4)
    assert [sighting["epoch"] for sighting in seen] == [2, 3]
    text = run("trace", *place, 7, "--first-epoch", 2).stdout
    assert text == "step {step:,}, row {row:,}: epoch {epoch:,}\n".format(**seen[0])


def test_a_record_of_the_remainder_is_not_seen(root):
    order = ("--batch-size", 8, "--shuffle", "none", "--epochs", 1)
    place = ("trace", root / "b/out", *order, "--records")
    left_out = "last batch that is not full is left out"
    assert left_out in run(*place, 10).stdout
    assert run(*place, 10, "--json").stdout == "[]\n"
    # Epochs after the last one have no batch at all: the message is true there, too.
    late = run(*place, 3, "--first-epoch", 5).stdout
    assert late.startswith("not seen in these epochs")
    kept = run(*place, 10, "--keep-remainder").stdout
    assert kept == "step 1, row 2: epoch 0\n"


ROWS = table_of(60, seed=3)


def table(folder, name, kind="none"):
    """Makes a dataset of rows with a bad line before each twentieth."""
    lines = jsonl_of(ROWS).splitlines(True)
    if name == "csv":
        header, _ = csv_of(ROWS[:1]).split(b"\n", 1)
        lines = [csv_of([row]).split(b"\n", 1)[1] for row in ROWS]
        lines[0] = header + b"\n" + lines[0]
    for number in (20, 40):
        lines[number] = b"bad\n\n" + lines[number]
    data = b"".join(lines)
    (folder / "in").write_bytes(COMPRESS[kind](data))
    options = ("--num-shards", 4, "--input-format", name, "--on-corrupt", "skip")
    run("convert", folder / "in", folder / "out", *options, "--workers", 1)
    return data


@pytest.mark.parametrize("kind", ["none", "gzip"])
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_the_line_of_a_record_is_named(tmp_path, name, kind):
    data = table(tmp_path, name, kind)
    for row in (0, 19, 20, 45, 59):
        found = json_of("trace", tmp_path / "out", "--records", row)
        offset = found["source_offset_bytes"]
        assert data.count(b"\n", 0, offset) + 1 == found["source_line"]
        line, number = data[offset:].split(b"\n", 1)[0], ROWS[row]["id"]
        if name == "jsonl":
            assert json.loads(line)["id"] == number
        else:
            assert line.startswith(b"%d," % number)
        assert found["source_note"] is None
    said = run("trace", tmp_path / "out", "--records", 0).stdout
    assert re.search(r"^ {12}line \d, byte offset ", said, re.MULTILINE)


def test_a_source_that_is_gone_or_changed_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = table(pathlib.Path(), "jsonl")
    assert json_of("trace", "out", "--records", 7)["source_line"] == 8
    for change in (
        lambda: (tmp_path / "in").write_bytes(data[5:] + data[:5]),
        (tmp_path / "in").unlink,
        lambda: monkeypatch.chdir("/"),
    ):
        change()
        found = json_of("trace", tmp_path / "out", "--records", 33)
        assert found["source_path"] == "in"
        assert "source_line" not in found
    assert "not found from here" in found["source_note"]


@pytest.mark.slow
def test_it_imports_no_heavy_library(root):
    line = ["trace", f"{root}/b/out", "--batch-size=4", "--step=0", "--row=0"]
    code = (
        "import atexit, sys\nfrom gristmill.pipelines.commands.main import main\n"
        "heavy = {'apache_beam', 'tensorflow', 'jax', 'grain'}\n"
        f"atexit.register(lambda: print(heavy & {{*sys.modules}}))\nmain({line!r})\n"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert "frame at byte offset" in out
    assert out.splitlines()[-1] == "set()"


# --- Documents: the records or rows that were made of a place.


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_what_was_made_of_a_place(tmp_path, name, is_packed):
    lines = documents(20, seed=3)
    data = b"".join(line + b"\n" for line in lines)
    path, output = tmp_path / name, tmp_path / "out"
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    text = RecordOptions(input_format="text")
    pack = packing() if is_packed else None
    conversion.convert(conversion.job_of(path, output, records=text, pack=pack))
    rows = after = 0
    for number, line in enumerate(lines):
        at, after = after, after + len(line) + 1
        of = ("trace", output, "--document", f"{path}@{at}")
        if is_packed and not len(tokens_of(line)):
            refused(*of)
            continue
        found = rows_of(*of)
        assert found == rows_of(*of[:3], f"{path}@line:{number + 1}")
        for row in found:
            rows += 1
            (piece,) = row.get("pieces", [row])
            assert piece["source_path"] == str(path)
            assert piece["source_offset_bytes"] == at
            assert is_packed or row["record"] == number
    assert rows > 10
    for wrong in (f"{at - 1}", "line:0", "line:10000"):
        said = refused("trace", output, "--document", f"{path}@{wrong}")
        assert re.search("no document begins there|names no place of a file", said)


def test_where_a_document_is_seen(root, opened):
    batches = loader.global_batches(opened("r"), batch_size=4, seed=7)
    piece = batches.locate(3, 1).pieces[0]
    place = ("trace", root / "r/out", "--batch-size", 4)
    of = ("--document", f"{piece.source_path}@{piece.source_offset_bytes}")
    (document,) = json_of(*place, "--seed", 7, *of, "--stop-epoch", 3)
    seen = {"epoch": 0, "step": 3, "row": 1}
    found = next(one for one in document["pieces"] if seen in one["sightings"])
    assert len(found["sightings"]) == 3
    text = run(*place, "--seed", 7, *of, "--stop-epoch", 3).stdout.splitlines()
    assert text[2].strip() == f"document {document['document']} of the shard"
    assert "            step 3, row 1: epoch 0" in text
