"""Plans of an exchange, from every state in which a run can end: a model of files."""

from __future__ import annotations

import google_crc32c
import pytest

from gristmill.dataset.commit.exchange_plan import Steps, moves_of, plan_split
from gristmill.dataset.commit.split_files import shards_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.base import FileInfo

NEW_DIR = layout.aside_dir("out", "d", "train")
Contents = dict[str, str]


def named(count: int) -> list[str]:
    return [layout.shard_name("d", "train", shard, count) for shard in range(count)]


def files_of(
    shards: list[str], damaged: list[str], *, age: str, packed: bool = False
) -> Contents:
    """Returns the files of a split with what they hold, alike in size."""
    paths = [
        *shards,
        *map(layout.index_path, shards),
        *map(layout.segments_path, shards if packed else ()),
        *(path for shard in damaged for path in layout.quarantine_paths(shard)),
        layout.table_path("d", "train"),
        layout.job_path("d", "train"),
        layout.inputs_path("d", "train"),
    ]
    return {path: f"{age} {path}" for path in paths}


class Model:
    """The files of a dataset, and those that are to replace them."""

    def __init__(
        self, there: Contents, new: Contents, *, remote: bool, packed: bool = False
    ):
        self.there, self.new, self.remote = dict(there), dict(new), remote
        self.packed = packed

    def infos(self, directory: str, files: Contents) -> dict[str, FileInfo]:
        """Returns the files as a storage lists them."""

        def info(path: str, text: str) -> FileInfo:
            crc32c = google_crc32c.value(text.encode()) if self.remote else None
            whole = layout.join(directory, path)
            return FileInfo(whole, len(text), f"version of {text}", crc32c)

        return {path: info(path, text) for path, text in files.items()}

    def plan(self, shards: list[str], damaged: list[str], old: list[str]) -> Steps:
        return plan_split(
            "out",
            "d",
            "train",
            shards=shards,
            damaged=damaged,
            packed=self.packed,
            is_own=lambda path: not {*old, *shards}.isdisjoint(shards_of(path)),
            new=self.infos(NEW_DIR, self.new),
            there=self.infos("out", self.there),
            remote=self.remote,
        )

    def carry_out(self, steps: Steps, most: int) -> int:
        """Does so many of the steps at most, and returns how many it did."""
        done = 0
        for info in steps.deletes[:most]:
            path = info.path.removeprefix("out/")
            assert info.version == f"version of {self.there[path]}"
            del self.there[path]
            done += 1
        for moves in steps.moves:
            for move in moves[: most - done]:
                path = move.path.removeprefix("out/")
                source = move.source.path.removeprefix(f"{NEW_DIR}/")
                assert source == path
                replaced = self.there.get(path)
                assert move.replaces == (f"version of {replaced}" if replaced else "")
                self.there[path] = self.new[path]
                if not self.remote:
                    del self.new[path]
                done += 1
                self.check_reader()
        return done

    def check_reader(self) -> None:
        """A reader on a local disk opens a shard, then its index: never a mix."""
        if self.remote:
            return
        started = any(
            text.startswith("new") and "/" not in path
            for path, text in self.there.items()
        )
        assert not started or not any(
            text.startswith("old") and text.endswith((".index", ".segments"))
            for text in self.there.values()
        )


@pytest.mark.parametrize("remote", [False, True], ids=["local", "bucket"])
@pytest.mark.parametrize(
    ("old", "new"),
    [(named(3), named(3)), (named(2), named(4)), (["a"], ["a", "b"])],
    ids=["as many", "more", "names of their own"],
)
@pytest.mark.parametrize(
    ("was", "packed"),
    [(False, False), (False, True), (True, True), (True, False)],
    ids=["records", "become rows", "rows", "become records"],
)
def test_from_any_state_the_same_files_in_the_end(
    old: list[str], new: list[str], remote: bool, was: bool, packed: bool
) -> None:
    before = files_of(old, old[:2], age="old", packed=was) | {"other": "of nobody"}
    marker = layout.write_path("d", "train")
    made = files_of(new, new[1:2], age="new", packed=packed) | {marker: "new marker"}
    wanted = {k: v for k, v in made.items() if k != marker} | {"other": "of nobody"}
    for most in range(100):
        model = Model(before, made, remote=remote, packed=packed)
        done = model.carry_out(model.plan(new, new[1:2], old), most)
        again = model.plan(new, new[1:2], old)
        assert again.missing == []
        model.carry_out(again, 100)
        assert model.there == wanted
        last = model.plan(new, new[1:2], old)
        # What describes the split is copied again: it is small.
        moved = [move.path for moves in last.moves for move in moves]
        assert moved == ([] if not remote else moved[-2:])
        if done < most:
            break
    assert done >= 2 * len(new)


def test_what_is_nowhere_is_missing() -> None:
    old, new = named(2), named(2)
    made = files_of(new, [], age="new", packed=True)
    indexes = layout.index_path(new[0]), layout.segments_path(new[1])
    lost = [new[1], *indexes, layout.table_path("d", "train")]
    for path in lost:
        del made[path]
    model = Model({}, made, remote=True, packed=True)
    assert model.plan(new, [], old).missing == lost


def test_a_file_with_the_same_content_is_not_moved() -> None:
    info = FileInfo("out/.new/a", 3, "1", 17)
    there = FileInfo("out/a", 3, "9", 17)
    assert moves_of("out", ["a"], {"a": info}, {"a": there}) == []
    other = there._replace(crc32c=18)
    (move,) = moves_of("out", ["a"], {"a": info}, {"a": other})
    assert (move.source, move.path, move.replaces) == (info, "out/a", "9")
    # A local disk has no checksums.
    unknown = info._replace(crc32c=None), there._replace(crc32c=None)
    assert len(moves_of("out", ["a"], {"a": unknown[0]}, {"a": unknown[1]})) == 1
