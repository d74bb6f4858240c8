"""The user's function: what it may return, and how its errors are told."""

from __future__ import annotations

import os
import pathlib

import pytest

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError, UserFunctionError
from gristmill.transforms.functions.user_functions import call, load_function
from tests.support.conversion import convert, job_of, read_output
from tests.support.records import frames_of

MODULE = """\
import sys


def same(record):
    return record


def mixed(record):
    number = int(record)
    return {0: None, 1: record, 2: [], 3: [record], 4: (record, b"x", b"")}[number % 5]


def fails(record):
    if record == b"7":
        raise ValueError("seven is not allowed")
    return record


def text(record):
    return record.decode()


def texts(record):
    return [record, "text"]


def generator(record):
    yield record


def leaves(record):
    sys.exit(0)


class Cleaner:
    @staticmethod
    def lower(record):
        return record.lower()


NUMBER = 3
"""


def line_of(text: str) -> int:
    return 1 + next(i for i, line in enumerate(MODULE.splitlines()) if text in line)


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch) -> pathlib.Path:
    """A module of the user's, in the current directory."""
    path = tmp_path / "user_functions_of_test.py"
    path.write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, path.stem, raising=False)
    return path


def load(name: str):
    return load_function(f"user_functions_of_test:{name}")


class TestLoad:
    def test_from_the_current_directory(self):
        assert load("same")(b"x") == b"x"

    @pytest.mark.parametrize(
        ("spec", "message"),
        [
            ("nothing", "not the name of a function"),
            (":f", "not the name of a function"),
            ("module:", "not the name of a function"),
            ("no_such_module_anywhere:f", "No module named"),
            ("user_functions_of_test:absent", "has no attribute 'absent'"),
            ("user_functions_of_test:NUMBER", "not a function"),
            ("broken_module:f", "SyntaxError"),
            ("raising_module:f", "RuntimeError: at import"),
        ],
    )
    def test_what_cannot_be_loaded(self, tmp_path, spec, message):
        (tmp_path / "broken_module.py").write_text("def f(:\n")
        (tmp_path / "raising_module.py").write_text("raise RuntimeError('at import')\n")
        with pytest.raises(InputError) as caught:
            load_function(spec)
        assert message in str(caught.value)
        assert "module:function" in str(caught.value)

    def test_a_conversion_does_not_begin_without_it(self, tmp_path):
        (tmp_path / "in").write_bytes(frames_of([b"1"]))
        with pytest.raises(InputError, match="cannot import"):
            convert(job_of(tmp_path / "in", tmp_path / "out", map="absent_module:f"))
        assert not (tmp_path / "out").exists()


class TestCall:
    @pytest.mark.parametrize(
        ("name", "got"),
        [
            ("text", "str"),
            ("texts", "list of ['bytes', 'str']"),
            ("generator", "generator"),
        ],
    )
    def test_what_it_may_not_return(self, name, got):
        with pytest.raises(UserFunctionError) as caught:
            call(load(name), b"abc", source="in.tfrecord, byte offset 12")
        message = str(caught.value)
        assert f"got:      {got}" in message
        assert "expected: bytes, None, or a list of bytes" in message
        assert "record of 3 bytes at in.tfrecord, byte offset 12" in message

    def test_its_error_with_line_and_record(self, module):
        with pytest.raises(UserFunctionError) as caught:
            call(load("fails"), b"7", source="in.tfrecord, byte offset 12")
        message = str(caught.value)
        assert "ValueError: seven is not allowed" in message
        assert (
            f"{module}, line {line_of('raise')}, in fails: raise ValueError" in message
        )
        assert "record of 1 bytes at in.tfrecord, byte offset 12" in message
        assert isinstance(caught.value.__cause__, ValueError)

    def test_sys_exit_is_an_error_like_others(self, module):
        with pytest.raises(UserFunctionError) as caught:
            call(load("leaves"), b"7", source="x")
        message = str(caught.value)
        assert "failed: SystemExit: 0" in message
        assert f"{module}, line {line_of('exit(0)')}, in leaves" in message


RECORDS = [b"%d" % number for number in range(23)]


class TestConversion:
    @pytest.fixture
    def source(self, tmp_path) -> pathlib.Path:
        path = tmp_path / "in"
        path.write_bytes(frames_of(RECORDS))
        return path

    @pytest.mark.parametrize("plan", [("num_shards", 4), ("num_shards", 5)], ids=str)
    def test_records_counts_and_digests(self, source, tmp_path, plan):
        spec = "user_functions_of_test:mixed"
        job = job_of(source, tmp_path / "out", plan=plan, map=spec)
        split = convert(job).manifest.splits["train"]
        expected = []
        for record in RECORDS:
            expected += call(load("mixed"), record, source="x")
        assert read_output(tmp_path / "out") == expected
        # 0 and 2 of five are dropped; 4 gives two more than it takes.
        assert (split.dropped_records, split.added_records) == (10, 8)
        assert split.records == len(expected) == 23 - 10 + 8
        # What came in is on record as well.
        assert split.source["records"] == 23
        assert split.source["raw_bytes"] == sum(map(len, RECORDS))
        assert split.source["options"]["map"] == spec
        assert split.source["records_digest"] == digest(RECORDS).hex
        assert split.records_digest == digest(expected).hex


def digest(records: list[bytes]) -> RecordsDigest:
    import google_crc32c
    import numpy as np

    return RecordsDigest.of(
        np.array(list(map(google_crc32c.value, records)), np.uint32),
        np.array(list(map(len, records)), np.int64),
    )


def test_a_forked_process_does_not_come_back_from_the_function(
    capfd: pytest.CaptureFixture[str],
) -> None:
    children = []

    def fork(record: bytes) -> bytes:
        children.append(os.fork())
        return record

    def fork_and_fail(record: bytes) -> bytes:
        fork(record)
        if not children[-1]:
            raise ValueError("in the child")
        return record

    for function in (fork, fork_and_fail):
        assert call(function, b"x", source="here") == (b"x",)
        _, status = os.waitpid(children[-1], 0)
        assert os.waitstatus_to_exitcode(status) == 1
        assert "forked a process, which was ended" in capfd.readouterr().err
