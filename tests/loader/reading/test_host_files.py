"""Where the files of a split's shards are, edition by edition."""

from __future__ import annotations

from gristmill.loader.reading.host_files import EditionFiles


def test_each_edition_counts_its_own_shards() -> None:
    files = EditionFiles("/c", keys=["a", "b", "c"], shards=[2, 0, 3])
    assert [files.path(shard, ".x") for shard in range(5)] == [
        *("/c/a/00000000.x", "/c/a/00000001.x"),
        *("/c/c/00000000.x", "/c/c/00000001.x", "/c/c/00000002.x"),
    ]


def test_an_append_moves_no_file() -> None:
    before = EditionFiles("/c", keys=["a"], shards=[2])
    after = EditionFiles("/c", keys=["a", "b"], shards=[2, 1])
    assert [before.path(n, "") for n in (0, 1)] == [after.path(n, "") for n in (0, 1)]
    assert after.directories == ["/c/a", "/c/b"]
