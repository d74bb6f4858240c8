"""Errors: one base, messages for people, and limits of the system that are named."""

from __future__ import annotations

import ast
import copy
import errno
import inspect
import os
import pathlib
import pickle
import subprocess
import sys
import threading

import pytest

from gristmill.dataset.base import errors
from gristmill.dataset.base.errors import (
    CorruptFrameError,
    CorruptShardError,
    GristmillError,
    InputError,
    MissingPackageError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.base.system import daemon_call, limits_named
from tests.support.datasets import convert
from tests.support.distributions import ROOT
from tests.support.memory import limited_memory
from tests.support.records import text_records

CLASSES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, Exception)
]
BUILTINS = (ImportError, IndexError, OSError, RuntimeError, ValueError)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("trip", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_messages_survive_a_trip(kind: type[GristmillError], trip) -> None:
    assert issubclass(kind, GristmillError)
    assert kind is GristmillError or issubclass(kind, BUILTINS)
    error = kind("it is broken", where="a/b", expected=3, got=0, cure="mend it")
    error.add_note("from shard 7")
    again = trip(error)
    assert type(again) is kind
    assert str(again).splitlines() == [
        *("it is broken", "  where:    a/b", "  expected: 3"),
        *("  got:      0", "  to do:    mend it"),
    ]
    assert again.__notes__ == ["from shard 7"]


def test_attributes_survive_a_trip() -> None:
    error = CorruptFrameError("bad", where="x")
    error.reason, error.offset, error.end, error.detail = "data", 17, 40, "expected"
    assert vars(pickle.loads(pickle.dumps(error))) == vars(error)


@pytest.mark.parametrize(
    "error",
    [
        InputError("what"),
        InputError("what", where="here", cure="do this"),
        InputError("two\nlines", expected="to do: a thing", got="a\n  file x\nb"),
        CorruptShardError("what", "where", 1, 2.5, "to do"),
    ],
)
def test_errors_come_back_from_their_text(error: GristmillError) -> None:
    again = type(error).from_text(str(error))
    assert (type(again), again.facts()) == (type(error), error.facts())


@pytest.mark.slow
def test_every_error_that_is_made_says_what_to_do() -> None:
    names = {kind.__name__ for kind in CLASSES}
    without, made = [], 0
    for package in ("dataset", "loader", "pipelines", "transforms"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                named = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if named in names:
                    made += 1
                    # `**facts` are those of another error.
                    given = {word.arg for word in node.keywords} & {"cure", None}
                    if len(node.args) < 5 and not given:
                        without.append(f"{path}:{node.lineno}")
    assert without == []
    assert made > 500


def test_options_are_parameters_in_python_and_options_on_the_command_line() -> None:
    error = InputError(
        "unknown --on-corrupt",
        where="a/--b",
        cure="give --on-corrupt skip, or see gristmill clean --unfinished; or --split",
    )
    assert str(error) == (
        "unknown `on_corrupt`\n"
        "  where:    a/--b\n"
        "  to do:    give `on_corrupt` skip, or see gristmill clean --unfinished; or "
        "`split`"
    )
    assert "give --on-corrupt skip" in error.for_commands()
    other = "tar --concatenate, or docker run --shm-size=2g"
    assert other in str(InputError("no room", cure=other))
    assert error.facts()["cure"] == error.cure


# Packages that are not installed.


def python(*lines: str, without: str) -> subprocess.CompletedProcess[str]:
    """Runs lines of Python as if a package was not installed."""
    script = "\n".join(["import sys", f"sys.modules[{without!r}] = None", *lines])
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("line", "package", "extra"),
    [
        ("from gristmill.transforms import ReadTFRecords", "apache_beam", "beam"),
        pytest.param(
            *("from gristmill.loader import to_jax", "grain", "loader"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_extra_of_a_package_is_named(line: str, package: str, extra: str) -> None:
    said = python(line, without=package).stderr
    assert f"MissingPackageError: the package {package} is not installed\n" in said
    assert said.endswith(f"  to do:    pip install 'gristmill[{extra}]'\n")
    # Code that does without it catches what Python raises.
    guarded = f"try:\n    {line}\nexcept ModuleNotFoundError:\n    print('without')"
    assert python(guarded, without=package).stdout == "without\n"
    for name in ("numpy", None):
        assert MissingPackageError.of(ModuleNotFoundError("x", name=name)) is None


# Open files, memory and threads that a process does not get.


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (MemoryError(), "ulimit -v"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENFILE, "Too many open files in system"), "fs.file-max"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "ulimit -v"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "-u"),
        (RuntimeError("other"), None),
        (OSError(errno.ENOENT, "No such file"), None),
        (KeyError("x"), None),
        (StorageError("cannot open", got="Too many open files"), None),
        (SystemLimitError("there is not enough memory"), None),
    ],
)
def test_a_limit_is_named_with_what_to_raise(error, cure: str | None) -> None:
    with pytest.raises((type(error), SystemLimitError)) as raised, limits_named():
        raise error
    if cure is None:
        assert raised.value is error
        return
    assert cure in raised.value.cure
    assert raised.value.got == (str(error) or "MemoryError")
    assert raised.value.__cause__ is error
    assert isinstance(raised.value, (MemoryError, RuntimeError))
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_library_that_is_loaded_in_part() -> None:
    def use(code: str) -> None:
        with limits_named():
            exec(code)

    failed = "raise ImportError('lib.so: failed to map segment from shared object')"
    partly = "raise AttributeError('partially initialized module')"
    for code, kind in ((failed, ImportError), (partly, AttributeError)):
        with pytest.raises(kind):
            use(code)  # Memory is not limited.
        with (
            limited_memory(1 << 40),
            pytest.raises(SystemLimitError, match="ulimit -v"),
        ):
            use(code)
    with limited_memory(1 << 40), pytest.raises(ModuleNotFoundError):
        use("import nothing_of_that_name")


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
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    files = [text_records(700, seed=seed) for seed in range(8)]
    return convert(tmp_path_factory.mktemp("limits"), files)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "use", "amounts"),
    [
        ("files", "read", (0, 2, 3, 5, 7, 9, 12, 120)),
        pytest.param(
            *("files", "0", (0, 2, 3, 5, 7, 9, 12, 120)), marks=pytest.mark.soak
        ),
        ("files", "2", (4, 8, 30)),
        # Read without threads: Python waits for ever for one that cannot begin.
        ("memory", "read", (0, 1, 2, 3, 5, 8, 20, 900)),
    ],
)
def test_a_loader_with_few_descriptors_or_little_address_space(
    dataset: str, tmp_path: pathlib.Path, kind: str, use: str, amounts
) -> None:
    """It reads all, or names the limit."""
    (tmp_path / "program.py").write_text(PROGRAM)
    ended = subprocess.run(
        [sys.executable, tmp_path / "program.py", kind, dataset, use]
        + [str(amount) for amount in amounts],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line.split(" ", 2) for line in ended.stdout.splitlines()]
    assert len(lines) == len(amounts)
    refused = [line for line in lines if line[0] != "read"]
    assert len(refused) >= {"files": 2, "memory": 1}[kind]
    assert {line[0] for line in refused} <= {"StorageError", "SystemLimitError"}
    cure = "`ulimit -n 65536`" if kind == "files" else "`ulimit -"
    assert all(cure in line[2] for line in refused)
    assert lines[-1][0] == "read"


FILES = """
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


def test_a_soft_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    command = [sys.executable, "-c", FILES]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "expected: 60 more, for a test" in said
    assert "got:      60 are open, of 60" in said


# Calls in daemon threads.


def test_results_and_errors_of_daemon_threads_come_back() -> None:
    def name() -> str:
        return threading.current_thread().name

    def fail() -> None:
        raise KeyboardInterrupt("no")

    assert daemon_call(name, thread_name="gristmill-x").result(30) == "gristmill-x"
    with pytest.raises(KeyboardInterrupt, match="no"):
        daemon_call(fail, thread_name="x").result(30)
    # The process ends without waiting.
    script = (
        "import threading\n"
        "from gristmill.dataset.base.system import daemon_call\n"
        "daemon_call(threading.Event().wait, thread_name='x')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
