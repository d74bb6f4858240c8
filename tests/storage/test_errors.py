"""Errors: one base, messages for people, and limits of the system that are named."""

import ast
import copy
import errno
import inspect
import pickle
import subprocess
import sys

import pytest

from gristmill.dataset import (
    CorruptFrameError,
    CorruptShardError,
    GristmillError,
    InputError,
    MissingPackageError,
    StorageError,
    SystemLimitError,
)
from gristmill.dataset.base import errors
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


def python(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("trip", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))])
def test_messages_survive_a_trip(kind, trip):
    assert issubclass(kind, GristmillError)
    assert kind is GristmillError or issubclass(kind, BUILTINS)
    error = kind("it is broken", where="a/b", expected=3, got=0, cure="mend it")
    error.add_note("from shard 7")
    if kind is CorruptFrameError:
        error.reason, error.offset, error.end, error.detail = "data", 17, 40, "it"
    again = trip(error)
    assert type(again) is kind
    assert str(again).splitlines() == [
        *("it is broken", "  where:    a/b", "  expected: 3"),
        *("  got:      0", "  to do:    mend it"),
    ]
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    "error",
    [
        InputError("what", where="here", cure="do this"),
        InputError("two\nlines", expected="to do: a thing", got="a\n  file x\nb"),
        CorruptShardError("what", "where", 1, 2.5, "to do"),
    ],
)
def test_errors_come_back_from_their_text(error):
    again = type(error).from_text(str(error))
    assert (type(again), again.facts()) == (type(error), error.facts())


@pytest.mark.slow
def test_every_error_that_is_made_says_what_to_do():
    names = {kind.__name__ for kind in CLASSES}
    without, made = [], 0
    for package in ("dataset", "loader", "pipelines", "transforms"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                if getattr(node.func, "attr", getattr(node.func, "id", "")) in names:
                    made += 1
                    # `**facts` are those of another error.
                    given = {word.arg for word in node.keywords} & {"cure", None}
                    if len(node.args) < 5 and not given:
                        without.append(f"{path}:{node.lineno}")
    assert without == []
    assert made > 500


def test_options_are_parameters_in_python_and_options_on_the_command_line():
    given = "give --on-corrupt skip, or see gristmill clean --unfinished; or --split"
    error = InputError("unknown --on-corrupt", where="a/--b", cure=given)
    means = "give `on_corrupt` skip, or see gristmill clean --unfinished; or `split`"
    assert str(error).splitlines() == [
        *("unknown `on_corrupt`", "  where:    a/--b", f"  to do:    {means}")
    ]
    assert "give --on-corrupt skip" in error.for_commands()
    other = "tar --concatenate, or docker run --shm-size=2g"
    assert other in str(InputError("no room", cure=other))
    assert error.facts()["cure"] == error.cure


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
def test_the_extra_of_a_package_is_named(line, package, extra):
    without = f"import sys\nsys.modules[{package!r}] = None\n"
    said = python(without + line).stderr
    assert f"MissingPackageError: the package {package} is not installed\n" in said
    assert said.endswith(
        f"  to do:    pip install '.[{extra}]', in the clone of gristmill\n"
    )
    # Code that does without it catches what Python raises.
    guarded = f"try:\n    {line}\nexcept ModuleNotFoundError:\n    print('without')"
    assert python(without + guarded).stdout == "without\n"
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
        (OSError(errno.ENOENT, "No such file"), None),
        (StorageError("cannot open", got="Too many open files"), None),
        (SystemLimitError("there is not enough memory"), None),
    ],
)
def test_a_limit_is_named_with_what_to_raise(error, cure):
    with pytest.raises((type(error), SystemLimitError)) as raised, limits_named():
        raise error
    if cure is None:
        assert raised.value is error
        return
    assert cure in raised.value.cure
    assert raised.value.got == (str(error) or "MemoryError")
    assert raised.value.__cause__ is error
    assert isinstance(raised.value, (MemoryError, RuntimeError))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise ImportError('failed to map segment from shared object')", ImportError),
        ("raise AttributeError('partially initialized module')", AttributeError),
        ("import nothing_of_that_name", None),
    ],
)
def test_a_library_that_is_loaded_in_part(code, kind):
    def use():
        with limits_named():
            exec(code)

    with pytest.raises(kind or ModuleNotFoundError):
        use()  # Memory is not limited.
    limited = SystemLimitError if kind else ModuleNotFoundError
    with limited_memory(1 << 40), pytest.raises(limited, match=r"ulimit -v|named"):
        use()


LIMITED = """
import os, resource, sys
from gristmill import loader
from gristmill.dataset.base.errors import GristmillError

def result(kind, amount):
    if kind == resource.RLIMIT_NOFILE:
        most = len(os.listdir("/proc/self/fd")) - 1 + amount
    else:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        most = used + (amount << 20)
    resource.setrlimit(kind, (most, most))
    try:
        dataset = loader.open(sys.argv[1], cache_dir="")
        return "read" if dataset[:] == expected else "wrong"
    except GristmillError as e:
        return repr(f"{type(e).__name__} {e}")

expected = loader.open(sys.argv[1])[:]
for amount in map(int, sys.argv[3:]):
    # A limit cannot be raised again. Without threads: Python waits for ever for one
    # that cannot begin.
    child = os.fork()
    if not child:
        print(result(getattr(resource, sys.argv[2]), amount), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "amounts", "fewest", "cure"),
    [
        ("RLIMIT_NOFILE", (0, 2, 3, 5, 7, 9, 12, 120), 2, "`ulimit -n 65536`"),
        ("RLIMIT_AS", (0, 1, 2, 3, 5, 8, 20, 900), 1, "`ulimit -"),
    ],
)
def test_a_loader_reads_all_or_names_the_limit(tmp_path, kind, amounts, fewest, cure):
    files = [text_records(700, seed=seed) for seed in range(8)]
    said = python(LIMITED, convert(tmp_path, files), kind, *amounts).stdout
    lines = said.splitlines()
    assert len(lines) == len(amounts), lines
    refused = [line for line in lines if line != "read"]
    assert len(refused) >= fewest
    for line in refused:
        assert line[1:].startswith(("StorageError ", "SystemLimitError ")), line
        assert cure in line
    assert lines[-1] == "read"


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
for more in (60, 1):
    try:
        check_files(more, what="a test")
    except SystemLimitError as e:
        print(e)
    left = 60 - len(os.listdir("/proc/self/fd")) + 1
    files = [open("/dev/null") for _ in range(left)]
"""


def test_a_soft_limit_of_open_files_is_raised_as_far_as_it_may_be():
    said = python(FILES).stdout
    assert "expected: 60 more, for a test" in said
    assert "got:      60 are open, of 60" in said


def test_any_error_of_a_thread_reaches_who_waits_for_it():
    def fail():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        daemon_call(fail, thread_name="x").result(30)
