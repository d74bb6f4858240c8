"""Every way to make batches, said by options, in every command that takes them.

What a command says of a row is compared with what the loader gives there, and what it
says of a record with all rows of the first steps.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.loader.data.batches import row_at
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import AppendOptions
from tests.commands.view.conftest import content_of
from tests.order.packed_datasets import packing, record, write_frames
from tests.support import conversion, datasets
from tests.support.records import frames_of

SIZE = 6  # Rows of a batch.


def run(command: str, *arguments: object) -> Any:
    done = CliRunner().invoke(cli, [command, *map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done


def refused(*arguments: object) -> str:
    done = CliRunner().invoke(cli, ["trace", *map(str, arguments)])
    assert done.exit_code == 2, done.output
    return done.output


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> pathlib.Path:
    """Plain `a`, of two splits and two editions, and `b`; packed `p`, `q` and `r`."""
    root = tmp_path_factory.mktemp("order")
    for name, split, count in (
        ("a", "train", 17),
        ("a", "test", 8),
        ("b", "train", 13),
    ):
        records = [
            b"%s %s %d" % (name.encode(), split.encode(), n) for n in range(count)
        ]
        datasets.convert(
            root / name, [records[:5], records[5:]], split=split, name=name
        )
    (root / "new.tfrecord").write_bytes(frames_of([b"new %d" % n for n in range(7)]))
    added = AppendOptions(
        input=(str(root / "new.tfrecord"),), output=str(root / "a/out"), split="train"
    )
    run_conversion(**conversion_of(added)._asdict())
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


def one(opened: Any, **order: Any) -> loader.GlobalBatches:
    return loader.global_batches(opened, batch_size=SIZE, **order)


def of_tokens(
    opened: dict[str, loader.Dataset], tokens_per_row: Any = None, **shares: Any
) -> loader.GlobalBatches:
    weights = loader.token_weights(opened, shares, tokens_per_row=tokens_per_row)
    return one(opened, weights=weights, seed=5)


WAYS = {
    "seed": Way(
        lambda o: one(o("a", split="train"), seed=5), "a --split train --seed 5"
    ),
    "stored": Way(lambda o: one(o("b"), shuffle="none"), "b --shuffle none"),
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
    "edition": Way(
        lambda o: one(o("a", split="train", edition=1)), "a --split train --edition 1"
    ),
    "splits": Way(
        lambda o: one(o("a", split=["test", "train"])), "a --split test,train"
    ),
    "joined": Way(
        lambda o: one(o("a", "b", split=["train", "train"], edition=[1, None])),
        "a b --split train --edition 1,last",
    ),
    "lengths": Way(lambda o: one({"p": o("p"), "q": o("q")}), "p=p q=q"),
    "rows": Way(
        lambda o: one({"p": o("p"), "q": o("q")}, weights={"p": "0.6", "q": "0.4"}),
        "p=p q=q --weights p=0.6,q=0.4",
    ),
    "tokens": Way(
        lambda o: of_tokens({"p": o("p"), "q": o("q")}, p="0.6", q="0.4"),
        "p=p q=q --token-weights p=0.6,q=0.4 --seed 5",
    ),
    "tokens of others": Way(
        lambda o: of_tokens({"p": o("p"), "b": o("b")}, {"b": 9}, p=1, b=1),
        "p=p b=b --token-weights p=1,b=1 --tokens-per-row b=9 --seed 5",
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


def changed(open_: Callable[..., loader.Dataset]) -> loader.GlobalBatches:
    """Returns batches of which everything changes at a step, with a joined dataset."""
    before = of_tokens({"pq": open_("p"), "q": open_("q")}, pq=2, q=1)
    more = before.then({"pq": open_("p", "r")}, step=1)
    return more.then(weights={"pq": 1, "q": 3}, step=2).then(
        batch_size=SIZE + 1, step=3
    )


def opened(root: pathlib.Path) -> Callable[..., loader.Dataset]:
    def open_(*names: str, **options: Any) -> loader.Dataset:
        paths = [str(root / name / "out") for name in names]
        return loader.open(paths if len(paths) > 1 else paths[0], **options)

    return open_


def given(root: pathlib.Path, options: str) -> list[str]:
    """Returns options whose datasets are paths, with the size of a batch."""
    first, *rest = options.split(" --")
    names = [(name.rpartition("=")[::2]) for name in first.split()]
    paths = [f"{name}{'=' * bool(name)}{root / path / 'out'}" for name, path in names]
    return [*paths, *(word for part in rest for word in f"--{part}".split())]


def check(
    batches: loader.GlobalBatches, order: Sequence[object], folder: pathlib.Path
) -> None:
    """Compares what all commands say with the batches."""
    steps = range(min(batches.steps or 5, 5))
    rows = {
        (step, row): row_at(batches, step, row)
        for step in steps
        for row in range(len(batches.schedule.positions(step)))
    }
    for step, row in ((0, 0), (2, 4), max(rows)):
        found = json.loads(
            run("trace", *order, "--step", step, "--row", row, "--json").stdout
        )
        where = batches.locate(step, row)
        for name in ("dataset", "record", "shard", "record_in_shard", "epoch"):
            assert found[name] == getattr(where, name), (step, row, name)
    seen = rows[2, 4]
    of = ("--of", seen.name) if batches.names else ()
    at = ("--records", seen.record, *of, "--stop-epoch", 9, "--json")
    expected = {place for place, one in rows.items() if one[1:4:2] == seen[1:4:2]}
    found = json.loads(run("trace", *order, *at).stdout)
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
def test_options_mean_what_the_arguments_of_the_loader_mean(root, tmp_path, way):
    batches = WAYS[way].made(opened(root))
    order = (*given(root, WAYS[way].options), "--batch-size", SIZE)
    check(batches, order, tmp_path)


@pytest.mark.parametrize("way", ["joined", "names"])
def test_a_state_means_the_same(root, tmp_path, way):
    batches = WAYS[way].made(opened(root))
    state = tmp_path / "state.json"
    with batches.feed(host=(0, 1)) as feed:
        state.write_text(json.dumps(feed.get_state()))
    options = given(root, WAYS[way].options)
    kept = [n for n, one in enumerate(options) if one in ("--split", "--edition")]
    order = [one for n, one in enumerate(options) if n in kept or n - 1 in kept]
    names = [one for one in options if one.endswith("/out")]
    check(batches, (*names, *order, "--state", state), tmp_path)


@pytest.mark.slow
def test_a_state_has_what_changes_at_steps(root, tmp_path):
    batches = changed(opened(root))
    state = tmp_path / "state.json"
    with batches.feed(host=(0, 1)) as feed:
        state.write_text(json.dumps(feed.get_state()))
    check(batches, (*given(root, "pq=p pq=r q=q"), "--state", state), tmp_path)


def test_a_record_alone_needs_no_order(root):
    place = root / "a/out"
    first = ("--split", "train", "--records", 19)
    out = run("trace", place, *first, "--show")
    dataset = loader.open(place, "train")
    shard = dataset.shard(int(dataset.find([19])[0][0])).path
    assert f"record    19\n  shard     {shard}\n" in out.stdout
    assert f"source    {root}/new.tfrecord" in out.stdout
    assert "record 19:" in out.stdout
    assert "--batch-size N" in out.stderr
    found = json.loads(run("trace", place, *first, "--json").stdout)
    assert (found["record"], "epoch" in found) == (19, False)
    named = (f"x={place}", f"y={root}/b/out", "--split", "train", "--records", 12)
    found = json.loads(run("trace", *named, "--of", "y", "--json").stdout)
    assert (found["dataset"], found["record"]) == ("y", 12)
    assert "no such dataset" in refused(*named, "--of", "z")
    assert "batch size is missing" in refused(place, *first, "--stop-epoch", 3)
    assert "out of range" in refused(place, "--split", "train", "--records", 24)
