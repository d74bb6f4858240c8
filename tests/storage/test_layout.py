"""Names of files: as TFDS builds and parses them, and never outside of the dataset."""

from __future__ import annotations

import fnmatch
import functools

import pytest

from gristmill.dataset.base.errors import InputError, InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import DESCRIBING


@functools.cache
def naming():
    from tensorflow_datasets.core import naming

    return naming


class TestShardNames:
    @pytest.mark.parametrize("name", ["c4", "my_data", "C4", "d2"])
    @pytest.mark.parametrize("split", ["train", "test_2", "validation", "train-en"])
    @pytest.mark.parametrize(
        ("index", "count"),
        [(0, 1), (3, 64), (99_999, 100_000), (0, 100_000), (7, 1_000_000)],
    )
    def test_are_those_of_tfds(self, name: str, split: str, index: int, count: int):
        ours = layout.shard_name(name, split, index, count)
        template = naming().ShardedFileTemplate(
            data_dir="/data",
            dataset_name=name,
            split=split,
            filetype_suffix="array_record",
        )
        theirs = template.sharded_filepath(shard_index=index, num_shards=count)
        assert ours == theirs.name
        info = naming().FilenameInfo.from_str(ours)
        assert (info.dataset_name, info.split) == (name, split)
        assert info.filetype_suffix == "array_record"
        assert (info.shard_index, info.num_shards) == (index, count)


class TestWrites:
    @pytest.mark.parametrize("mark", ["", "0123456789abcdef", "0" * 16])
    def test_a_key_says_split_and_write(self, mark: str):
        for split in ("train", "train-en", "0123456789abcdef"):
            key = layout.write_key(split, mark)
            assert layout.parse_write_key(key) == (split, mark)
            shards = [layout.shard_name("c4", key, 3, 64)]
            if mark:
                shards.append(layout.part_shard_name("c4", key, 1, 0, 7))
            for shard in shards:
                assert layout.shard_mark(shard, "c4", split) == mark
                assert layout.shard_mark(shard, "c4", "tra") is None
                assert layout.shard_mark(f"{shard}.md5", "c4", split) is None
                for other in {"", "0123456789abcdef", "0" * 16} - {mark}:
                    glob = layout.shard_glob("c4", layout.write_key(split, other))
                    assert not fnmatch.fnmatchcase(shard, glob)
                assert shard.startswith(layout.shard_prefix("c4", key))
                assert fnmatch.fnmatchcase(shard, layout.shard_glob("c4", key))
                assert fnmatch.fnmatchcase(
                    shard, layout.shard_prefix("c4", split) + "*"
                )
            for path in (
                *layout.split_paths("c4", key),
                layout.removed_path("c4", key),
                layout.part_path("c4", key, 1, 4),
            ):
                found = [
                    kind.parse(path, NAME="c4", SPLIT=split) for kind in DESCRIBING
                ]
                (parts,) = filter(None, found)
                assert layout.key_in(parts) == key
                assert not any(
                    kind.parse(path, NAME="c4", SPLIT="tra") for kind in DESCRIBING
                )

    @pytest.mark.parametrize(
        "key",
        [
            *("", f".{'0' * 16}", "train.", "train.0123", "train.0123456789ABCDEF"),
            *(f"train.{'0' * 16}.{'1' * 16}", f"train.{'0' * 17}", "train.e00002"),
        ],
    )
    def test_what_is_no_key(self, key: str):
        with pytest.raises(InputError, match="split name"):
            layout.parse_write_key(key)


class TestChecks:
    @pytest.mark.parametrize(
        ("check", "good", "bad"),
        [
            (
                layout.check_name,
                ["c4", "C4", "c4-en", "a_b", "v1.2", "a+b", "1", "_x"],
                [
                    *("", "-c4", "c4-", "c4--en", ".c4", "a/b", "a b", "a\n", "ä"),
                    *("..", "a*b", "a[b]", "$HOME", "a\0"),
                ],
            ),
            (
                layout.check_split,
                ["train", "test_2", "T", "en-train"],
                ["", "-", "a.b", "train-", "a/b", "train[:10%]", "a b", "train\n"],
            ),
        ],
    )
    def test_names(self, check, good, bad):
        assert [*map(check, good)] == good
        for name in bad:
            with pytest.raises(InputError, match=r"`name`|`split`"):
                check(name)

    @pytest.mark.parametrize(
        "path", ["a", "a/b", "c4-train.array_record-00000-of-00001", "a [1]/..b", "ä"]
    )
    def test_paths_inside(self, path: str):
        assert layout.check_relative(path, where="x") == path

    @pytest.mark.parametrize(
        "path",
        [
            *("", "/", "/a", "..", "../a", "a/..", "a/../b", ".", "./a", "a//b", "a/"),
            *("a\\b", "a\0", "gs://b/c", "file:///etc", "C:\\x"),
        ],
    )
    def test_paths_outside(self, path: str):
        with pytest.raises(InvalidDatasetError, match="outside") as caught:
            layout.check_relative(path, where="c4/dataset.json")
        assert "c4/dataset.json" in str(caught.value)
