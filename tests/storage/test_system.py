"""Limits of the system: open files, memory and threads that a process does not get."""

import errno
import os
import pickle
import subprocess
import sys

import pytest

from gristmill.dataset.base.errors import StorageError, SystemLimitError
from gristmill.dataset.base.system import limits_named
from tests.support.datasets import convert
from tests.support.memory import limited_memory
from tests.support.records import text_records


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (MemoryError(), "ulimit -v"),
        (MemoryError("cannot allocate 7 bytes"), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "-u"),
    ],
)
def test_a_limit_is_named_with_what_to_raise(error, cure):
    named = SystemLimitError.of(error)
    assert cure in named.cure
    assert named.got == (str(error) or "MemoryError")
    with pytest.raises(SystemLimitError) as raised, limits_named():
        raise error
    assert raised.value.__cause__ is error
    assert isinstance(raised.value, MemoryError)
    assert isinstance(raised.value, RuntimeError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(named)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("other"),
        OSError(errno.ENOENT, "No such file"),
        KeyError("x"),
        StorageError("cannot open", got="Too many open files"),
        SystemLimitError("there is not enough memory"),
    ],
)
def test_other_errors_stay_as_they_are(error):
    assert SystemLimitError.of(error) is None
    with pytest.raises(type(error)) as raised, limits_named():
        raise error
    assert raised.value is error


def test_a_library_that_is_loaded_in_part():
    failed = ImportError("lib.so: failed to map segment from shared object")
    missing = ModuleNotFoundError("No module named 'x'", name="x")

    def use(error: Exception) -> None:
        with limits_named():
            raise error

    def load() -> None:
        with limits_named():
            exec("raise AttributeError('partially initialized module')")

    with pytest.raises(ImportError, match="failed to map"):
        use(failed)  # Memory is not limited.
    with pytest.raises(AttributeError):
        load()
    with limited_memory(1 << 40):
        with pytest.raises(SystemLimitError, match="failed to map") as raised:
            use(failed)
        assert "ulimit -v" in str(raised.value.cure)
        with pytest.raises(SystemLimitError, match="partially initialized"):
            load()
        with pytest.raises(AttributeError):
            use(AttributeError("of a function"))
        with pytest.raises(ModuleNotFoundError):
            use(missing)


PROGRAM = """
import os, resource, sys, traceback
from gristmill import loader
from gristmill.dataset.base.errors import GristmillError

kind, path, use, *amounts = sys.argv[1:]


def limit(amount):
    if kind == "files":
        most = len(os.listdir("/proc/self/fd")) - 1 + amount
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    else:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        most = used + (amount << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def read():
    dataset = loader.open(path, cache_dir="")
    batches = loader.global_batches(dataset, batch_size=500, epochs=1)
    if use == "read":
        for step in range(batches.steps):
            assert batches.read(step) == expected[step]
        return
    options = {"host": (0, 1), "workers": int(use)}
    with batches.feed(**options) as feed:
        for step, batch in enumerate(feed):
            assert batch == expected[step]


def result(amount):
    limit(amount)
    try:
        read()
    except GristmillError as e:
        return f"{type(e).__name__} {amount} {e}".replace("\\n", " | ")
    return f"read {amount}"


def main():
    batches = loader.global_batches(loader.open(path), batch_size=500, epochs=1)
    expected.extend(batches.read(step) for step in range(batches.steps))
    del batches
    for amount in map(int, amounts):
        # A limit cannot be raised again.
        child = os.fork()
        if not child:
            try:
                print(result(amount), flush=True)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"the child with {amount} has failed")


expected = []
if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> str:
    files = [text_records(700, seed=seed) for seed in range(8)]
    return convert(tmp_path_factory.mktemp("limits"), files)


def results(tmp_path, *arguments: object) -> list[list[str]]:
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, tmp_path / "program.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.split(" ", 2) for line in ended.stdout.splitlines()]
    assert len(lines) == len(arguments) - 3
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("use", ["read", pytest.param("0", marks=pytest.mark.soak)])
def test_a_loader_with_few_descriptors(dataset: str, tmp_path, use: str) -> None:
    lines = results(tmp_path, "files", dataset, use, 0, 2, 3, 5, 7, 9, 12, 120)
    refused = [line for line in lines if line[0] != "read"]
    assert len(refused) >= 3
    assert all(line[0] in ("StorageError", "SystemLimitError") for line in refused)
    assert all("`ulimit -n 65536`" in line[2] for line in refused)
    assert lines[-1][0] == "read"


@pytest.mark.slow
def test_workers_with_few_descriptors_are_not_started(dataset: str, tmp_path) -> None:
    lines = results(tmp_path, "files", dataset, 2, 4, 8, 30)
    assert [line[0] for line in lines] == ["SystemLimitError"] * 2 + ["read"]
    assert all("`ulimit -n 65536`" in line[2] for line in lines[:2])


@pytest.mark.slow
def test_a_loader_with_little_address_space(dataset: str, tmp_path) -> None:
    """Read without threads: Python waits for ever for one that cannot begin."""
    amounts = (0, 1, 2, 3, 5, 8, 20, 900)
    lines = results(tmp_path, "memory", dataset, "read", *amounts)
    refused = [line for line in lines if line[0] != "read"]
    assert refused
    assert all(line[0] in ("StorageError", "SystemLimitError") for line in refused)
    assert all("`ulimit -" in line[2] for line in refused)
    assert lines[-1][0] == "read"


def test_a_soft_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    program = """
import os, resource
from gristmill.dataset.base.errors import SystemLimitError
from gristmill.dataset.base.system import check_files
resource.setrlimit(resource.RLIMIT_NOFILE, (20, 60))
check_files(10, what="a test")
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (20, 60)
check_files(40, what="a test")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
assert 40 < soft <= 60 and hard == 60
try:
    check_files(60, what="a test")
except SystemLimitError as e:
    print(e)
files = [open("/dev/null") for _ in range(60 - len(os.listdir("/proc/self/fd")) + 1)]
try:
    check_files(1, what="a test")
except SystemLimitError as e:
    print(e)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "expected: 60 more, for a test" in ended.stdout
    assert "got:      60 are open, of 60" in ended.stdout
