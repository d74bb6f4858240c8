"""What commands show while they run."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from gristmill.dataset.base.columns import Done
from gristmill.pipelines.local.progress import Counter, shown
from tests.support.records import text_records, write_tfrecords
from tests.support.shell import on_terminal, sent_to_terminal, succeeded
from tests.support.waiting import until


def line_of(capfd, is_there: Callable[[str], bool]) -> str:
    """Returns the last line that was printed, once there is such a line."""
    lines = [""]

    def is_printed() -> bool:
        lines[0] += capfd.readouterr().err
        return is_there(lines[0]) and lines[0].endswith("\n")

    until(is_printed)
    return lines[0].splitlines()[-1]


def test_lines_without_a_terminal(capfd):
    counter = Counter("shards", 2, 400)
    with shown("verifying", counter, line_seconds=0.01):
        counter.add(Done("", "", 300, 12_000, 2_000_000))
        # On a busy machine the first line may come before the counter has counted.
        line = line_of(capfd, lambda lines: "75%" in lines)
    pattern = (
        r"verifying  75%  1/2 shards  12,000 records  [\d,.]+ MB/s  0:00:\d\d elapsed"
    )
    assert re.fullmatch(pattern, line), line
    # Nobody knows how long this takes.
    with shown("preparing", line_seconds=0.01):
        line = line_of(capfd, lambda lines: "preparing" in lines)
    assert re.fullmatch(r"preparing  0:00:\d\d elapsed", line), line


@pytest.mark.slow
def test_every_long_command_shows_its_progress(tmp_path):
    write_tfrecords(tmp_path / "in.tfrecord", text_records(300))
    convert = ("convert", "in.tfrecord", "texts", "--num-shards", "3")
    text = on_terminal(*convert, cwd=tmp_path)
    # The inputs are listed first.
    assert re.search(r"preparing .* \d:\d\d:\d\d elapsed", text)
    assert re.search(r"converting \S+ 100%  3/3 shards  300 records .* left", text)
    text = on_terminal("verify", "texts", cwd=tmp_path)
    assert re.search(r"verifying \S+ 100%  3/3 shards  300 records .* left", text)
    text = on_terminal(*("index", "texts/*array_record*", "--overwrite"), cwd=tmp_path)
    assert re.search(r"indexing \S+ 100%  3/3 files  300 records .* left", text)
    # On a narrow terminal the times are still there.
    text = on_terminal("verify", "texts", cwd=tmp_path, columns=80)
    pattern = (
        r"verifying \S+ 100%  3/3 shards  [\d.]+ MB/s  \d:\d\d:\d\d elapsed, \S+ left"
    )
    assert re.search(pattern, text)
    assert "\x1b" not in succeeded("verify", "texts", cwd=tmp_path)
    colour = re.compile(r"\x1b\[[\d;]*3[0-9;]+m")
    assert colour.search(sent_to_terminal("verify", "texts", cwd=tmp_path))
    text = sent_to_terminal("verify", "texts", cwd=tmp_path, NO_COLOR="1")
    assert "verifying" in text
    assert not colour.search(text)
    assert sent_to_terminal("verify", "texts", "-q", cwd=tmp_path) == ""
    write_tfrecords(tmp_path / "more.tfrecord", text_records(300, seed=1))
    text = on_terminal("append", "texts", "more.tfrecord", cwd=tmp_path)
    assert re.search(r"appending .* elapsed, .* left", text)
