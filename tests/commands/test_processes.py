"""The processes of a command: their results, errors and deaths, and that all end."""

import contextlib
import functools
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from gristmill.dataset import InputError, WorkerDiedError
from gristmill.dataset.base.system import daemon_call
from gristmill.pipelines.local.pool import call_apart, map_unordered
from tests.support.records import text_records, write_tfrecords
from tests.support.shell import records_of
from tests.support.started import started
from tests.support.waiting import until

_two = threading.Barrier(2)  # Of each process.


class _Unspeakable:
    def __reduce__(self):
        raise TypeError("not to be sent")

    def __repr__(self):
        raise RuntimeError("not to be shown")


def meet(_):
    """Returns once another call runs in the same process."""
    _two.wait(60)
    return os.getpid()


def spin(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


# What a function of the user could do to its process; PATH is a file.
LEAVE = {
    "thread": "threading.Thread(target=threading.Event().wait).start()",
    "atexit": "import atexit; atexit.register(threading.Event().wait)",
    "late": "import atexit; atexit.register(lambda: open('PATH', 'a').write('x'))",
    # A process that holds all descriptors of the worker open.
    "fork": "child = os.fork() or threading.Event().wait()\n"
    "with open('PATH', 'a') as file: file.write(f'{child}\\n')",
}
LEAVE["ignores"] = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{LEAVE['thread']}"
LEAVE["dies"] = f"{LEAVE['fork']}\nos.kill(os.getpid(), signal.SIGKILL)"


FAILS = "raise InputError('no good', where='here')"


def work(code):
    """Does as code says; returns its result, or the number of the process."""
    scope = dict(globals())
    exec(code, scope)
    return scope.get("result", os.getpid())


def results(function, items, **how):
    """Returns the results of a pool; a hang is an error."""

    def found():
        return list(map_unordered(function, items, **{"workers": 2, **how}))

    return daemon_call(found, thread_name="map").result(60)


@pytest.fixture
def pids(tmp_path):
    """A file for the numbers of processes, which are killed in the end."""
    path = tmp_path / "pids"
    path.touch()
    yield str(path)
    for pid in path.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.slow
def test_a_call_in_a_process_of_its_own(caplog):
    assert call_apart(functools.partial(abs, -7)) == 7
    with pytest.raises(InputError, match="no good"):
        call_apart(functools.partial(work, FAILS))
    with pytest.raises(WorkerDiedError):
        call_apart(functools.partial(work, "os.abort()"))
    pid = call_apart(functools.partial(work, LEAVE["thread"]))
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (1, 3), (2, 1), (2, 3)])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_every_item_once(workers, threads, count):
    with started() as own:
        found = map_unordered(str, range(count), workers=workers, threads=threads)
        assert sorted(found) == sorted(map(str, range(count)))
        own.wait_until_ended()


@pytest.mark.slow
def test_little_work_is_done_here_and_the_rest_by_as_many_as_asked_for():
    assert {*results(spin, [0, 0], workers=1)} == {os.getpid()}
    pids = results(spin, [0.1] * 12, alone_seconds=0.15)
    assert pids[:2] == [os.getpid()] * 2
    assert len(pids) == 12
    assert len({*pids[2:]} - {os.getpid()}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_calls_overlap_in_each_process(workers):
    pids = results(meet, range(2 * workers), workers=workers, threads=2)
    assert sorted(map(pids.count, set(pids))) == [2] * workers


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "threads"), [(2, 1), (1, 2), (2, 2)])
def test_error_keeps_its_type_and_calls_that_began_are_finished(
    tmp_path, workers, threads
):
    touch = f"time.sleep(0.5); pathlib.Path('{tmp_path}/good').touch()"
    items = [touch, FAILS, *["time.sleep(0.5)"] * 20]
    with pytest.raises(InputError, match=r"no good\n  where: .*here") as raised:
        results(work, items, workers=workers, threads=threads)
    assert (tmp_path / "good").exists()
    if workers > 1:
        assert "in work" in str(raised.value.__cause__)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_result_that_can_be_neither_sent_nor_shown(threads):
    with pytest.raises(TypeError, match="_Unspeakable does not pickle: not to be sent"):
        results(work, ["", "result = _Unspeakable()", ""], threads=threads)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["thread", "atexit", "ignores"])
def test_workers_that_do_not_end_are_killed_and_it_is_said(caplog, kind):
    with caplog.at_level(logging.WARNING):
        assert len(results(work, [LEAVE[kind]] * 8, patience_seconds=0.1)) == 8
    assert " of 2 worker processes were killed" in caplog.text
    assert "--map function" in caplog.text
    assert "No result is lost" in caplog.text


@pytest.mark.slow
def test_what_workers_leave_is_done_and_keeps_none_of_them(tmp_path, pids, caplog):
    late = LEAVE["late"].replace("PATH", f"{tmp_path}/exits")
    results(work, [late] * 4, patience_seconds=59)
    assert (tmp_path / "exits").read_text() == "xxxx"
    fork = LEAVE["fork"].replace("PATH", pids)
    assert len(results(work, [fork] * 2, patience_seconds=70)) == 2
    assert not caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("os._exit(0)", r"process \d+ exited with code 0\n.*os\._exit"),
        ("os._exit(3)", r"process \d+ exited with code 3\n.*os\._exit"),
        ("os.kill(os.getpid(), 9)", r"process \d+ was killed, most often .* memory"),
        (
            "os.kill(os.getpid(), 11)",
            r"process \d+ was ended by a signal: Segmentation fault",
        ),
        (LEAVE["dies"], "was killed"),
    ],
)
def test_a_worker_that_ends_early_is_named(pids, what, said):
    with pytest.raises(WorkerDiedError, match=said):
        results(work, [what.replace("PATH", pids)] * 2)


BEAM_PROCESSES = (
    "--runner FnApiRunner -- --direct_running_mode=multi_processing "
    "--direct_num_workers=2"
)
SLOW_MAP = """
import itertools, os, time
calls = itertools.count(1)
def slow(record):
    if next(calls) > 10:  # It is tried on so many, in another process.
        open(f'worker-{os.getpid()}', 'w').close()
    if not os.path.exists('go'):
        time.sleep(0.1)
    return record
"""


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("options", ["--workers 2", BEAM_PROCESSES])
def test_killed_worker_is_an_error_and_a_rerun_finishes(tmp_path, options):
    (tmp_path / "slow.py").write_text(SLOW_MAP)
    write_tfrecords(tmp_path / "in.tfrecord", text_records(1000))
    line = "gristmill convert in.tfrecord out --num-shards 4 --map slow:slow"
    command = [sys.executable, "-m", *line.split(), *options.split()]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: [*tmp_path.glob("worker-*")])
        worker = min(tmp_path.glob("worker-*"))
        os.kill(int(worker.name.partition("-")[2]), signal.SIGKILL)
        (tmp_path / "go").touch()
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert b"a worker process ended without a result" in stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert records_of(tmp_path / "out") == text_records(1000)


# Each process of it leaves a file with its number, and stays: a worker while it works,
# or while it imports.
_ENDLESS = """
import os, pathlib, sys, time
from gristmill.pipelines.local.pool import map_unordered

def stay():
    pathlib.Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(600)

if "IMPORTING" in os.environ and __name__ != "__main__":
    stay()

def work(number):
    stay()

if __name__ == "__main__":
    if sys.argv[2] == "imports":
        os.environ["IMPORTING"] = "1"
    try:
        list(map_unordered(work, range(2), workers=2))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
"""


def _alive(pid):
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sig", "when"),
    [(signal.SIGKILL, "works"), (signal.SIGINT, "works"), (signal.SIGINT, "imports")],
    ids=str,
)
def test_workers_end_with_their_parent(tmp_path, sig, when):
    script = tmp_path / "endless.py"
    script.write_text(_ENDLESS)
    markers = tmp_path / "markers"
    markers.mkdir()
    with (tmp_path / "stderr").open("w+") as stderr:
        parent = subprocess.Popen(
            [sys.executable, str(script), str(markers), when],
            stderr=stderr,
            start_new_session=True,
        )
        try:
            until(lambda: len(os.listdir(markers)) == 2)
            if sig == signal.SIGINT:
                os.killpg(parent.pid, sig)  # As Ctrl-C does.
            else:
                os.kill(parent.pid, sig)
            parent.wait(60)
            until(lambda: not any(map(_alive, os.listdir(markers))))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)
            parent.wait()
        stderr.seek(0)
        said = stderr.read()
    if when == "imports":
        assert said == "interrupted\n"


# --- A command's own process ends with the command, whatever is left in it.

_START = """
import atexit, multiprocessing, os, sys, threading
from gristmill.pipelines.commands.command import ending_in_time

def forever():
    threading.Event().wait()

def end():
    sys.exit(int(sys.argv[1]))

with ending_in_time(patience_seconds=float(sys.argv[2])):
    print("result")
"""
THREAD = "threading.Thread(target=forever, name='theirs').start()"


def command(*lines, code=0, patience=0.1):
    """Returns a process with lines as the body of a command."""
    script = _START + "".join(f"    {line}\n" for line in lines)
    return [sys.executable, "-u", "-c", script, str(code), str(patience)]


def ended(*lines, **how):
    """Runs lines as the body of a command; returns its exit code and outputs."""
    given = command(*lines, **how)
    done = subprocess.run(given, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [("end()", 0, ""), ("end()", 3, ""), ("raise ValueError('odd')", 1, "Error: odd")],
)
@pytest.mark.parametrize(
    ("left", "name"),
    [
        (THREAD, "the thread theirs"),
        ("atexit.register(forever)", "an atexit function"),
        (
            "import concurrent.futures as c; c.ThreadPoolExecutor(1).submit(forever)",
            "the thread ThreadPoolExecutor-",
        ),
    ],
)
def test_what_is_left_keeps_no_process(left, name, end, code, said):
    got, out, err = ended(left, end, code=code)
    assert (got, out) == (code, "result\n")
    assert "note: the command is done; its process was ended, as " in err
    assert name in err
    assert said in err


def test_a_child_process_keeps_no_process():
    child = "child = multiprocessing.get_context('fork').Process(target=forever)"
    close = "os.close(2)"  # Which the child holds, too.
    given = command(child, "child.start()", "print(child.pid)", close, "end()")
    process = subprocess.Popen(given, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    pid = int(process.stdout.readline())
    try:
        assert process.wait(60) == 0
    finally:
        os.kill(pid, signal.SIGKILL)
        process.kill()
        process.communicate()


def test_an_early_exit_is_an_error():
    for status in (0, 3):
        code, out, err = ended(f"os._exit({status})")
        assert (code, out) == (1, "result\n")
        assert err.startswith(f"error: os._exit({status}) was called before")
    # In a process of its own it is nobody else's concern.
    fork = "os.fork() or os._exit(3)"
    wait = "print(os.waitstatus_to_exitcode(os.wait()[1]))"
    assert ended(fork, wait, "end()", patience=60) == (0, "result\n3\n", "")


def test_ctrl_c_ends_the_wait():
    given = command(THREAD, "end()", patience=600)
    process = subprocess.Popen(given, stderr=subprocess.PIPE, text=True)

    def waits():
        # Before the wait it would be an error; there is nothing to see of its begin.
        with open(f"/proc/{process.pid}/stat") as stat:
            return int(stat.read().rpartition(")")[2].split()[17]) == 3

    until(waits)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[1] == ""
    assert process.returncode == 0
