"""What the writer's options accept, and what they mean."""

from __future__ import annotations

import pathlib

import google_crc32c
import pytest

from gristmill.dataset.arrayrecord.footer import Footer
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import InputError


def footer_of_shard(
    folder: pathlib.Path, records: list[bytes], options: WriterOptions
) -> Footer:
    writer = ShardWriter(str(folder / "shard"), options=options)
    writer.write(records, list(map(google_crc32c.value, records)))
    return writer.finish().footer


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "means"),
        [
            ("zstd", "zstd:3"),
            ("zstd:3", "zstd:3"),
            ("zstd:03", "zstd:3"),
            ("zstd:22", "zstd:22"),
            ("zstd:-5", "zstd:-5"),
            ("zstd:-131072", "zstd:-131072"),
            ("brotli", "brotli:6"),
            ("brotli:0", "brotli:0"),
            ("brotli:11", "brotli:11"),
            ("snappy", "snappy"),
            ("uncompressed", "uncompressed"),
        ],
    )
    def test_compression_is_spelled_in_one_way(
        self, tmp_path: pathlib.Path, given: str, means: str
    ):
        options = WriterOptions(compression=given)
        assert options.compression == means
        # And it is written into the footer.
        footer = footer_of_shard(tmp_path, [b"record"], options)
        assert f",{means}" in footer.writer_options
        assert "max_parallelism:1" in footer.writer_options

    @pytest.mark.parametrize(
        "given",
        [
            "zstd:23",
            "zstd:-131073",
            "zstd:",
            "zstd:x",
            "zstd:3.5",
            "zstd:3,transpose:true",
            "brotli:12",
            "brotli:-1",
            "snappy:1",
            "uncompressed:0",
            "gzip",
            "ZSTD:3",
            " zstd",
            "",
        ],
    )
    def test_other_compressions_are_refused(self, given: str):
        with pytest.raises(InputError, match="`compression`") as caught:
            WriterOptions(compression=given)
        assert repr(given) in str(caught.value)

    @pytest.mark.parametrize("group_size", [0, -1, (1 << 20) + 1])
    def test_group_sizes_out_of_range_are_refused(self, group_size: int):
        with pytest.raises(InputError, match="group size"):
            WriterOptions(group_size=group_size)
