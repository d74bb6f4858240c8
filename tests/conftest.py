"""Settings that all tests share, and what their marks do."""

import faulthandler
import functools
import gc
import os
import shutil
import signal
import sys
import tempfile

import hypothesis
import pytest

from tests import beam_memory, shares
from tests.servers.gcs_server import GcsServer
from tests.support import memory, shared

# A test that is not marked slow and takes longer fails.
QUICK_TIMEOUT_SECONDS = 120
SOAK_TIMEOUT_SECONDS = 3600
# Hypothesis tries so many times fewer examples as it does in a soak.
EXAMPLES_DIVISOR = 3

# Before anything imports TensorFlow: no log on stderr, no search for accelerators.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Before anything imports numpy: no threads that spin, in each of the many processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Before JAX makes its devices, and for the processes that tests start: it has eight
# devices, all of them this CPU.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

# What a shell starts in the background ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

memory.share_heaps()

# The same examples in every run, so that a failure is one for everybody. Search for
# new ones with `--hypothesis-profile search`.
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=60
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Keeps what tests and their processes cache out of the user's directories."""
    os.environ["GRISTMILL_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk(tmp_path_factory):
    """Keeps this process from syncing its temporary files: for an eighth of its time.

    They need not outlive a power failure. On other disks, and in processes that tests
    start, all is real.
    """
    device, fsync = tmp_path_factory.getbasetemp().stat().st_dev, os.fsync

    def fsync_elsewhere(descriptor):
        if os.fstat(descriptor).st_dev != device:
            fsync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync_elsewhere)
        yield


@pytest.fixture(autouse=True)
def _own_modules(tmp_path_factory):
    """Forgets what a test imported from its folder: others use the same names."""
    yield
    folder = f"{tmp_path_factory.getbasetemp()}{os.sep}"
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(folder):
            del sys.modules[name]


@pytest.fixture(params=["local", pytest.param("gs", marks=pytest.mark.slow)])
def output(request, tmp_path, monkeypatch):
    """Where a dataset can be made: a directory, or a place in a bucket."""
    if request.param == "local":
        yield str(tmp_path / "out")
        return
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield "gs://bucket/out"


@pytest.fixture
def server(monkeypatch):
    """A Cloud Storage with the buckets `bucket`, `other`, `in` and `out`."""
    with GcsServer("bucket", "other", "in", "out") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture
def temporary_in(monkeypatch):
    """Sets `TMPDIR`, of this process and of those that it starts."""

    def put(directory):
        monkeypatch.setenv("TMPDIR", str(directory))
        monkeypatch.setattr(tempfile, "tempdir", None)

    return put


@pytest.fixture
def blocks_of(monkeypatch):
    """Sets the bytes of a request to a bucket, so that small files take several."""
    from gristmill.dataset.storage.gcs import GcsStorage

    # Dozens of tests would read megabytes each.
    return functools.partial(monkeypatch.setattr, GcsStorage, "block_bytes")


@pytest.fixture
def without_compiled_part(monkeypatch):
    """Lets Python hash and decode chunks, as where there is no C compiler."""
    from gristmill.dataset.arrayrecord import compiled

    # An installation is of one kind, and both are to be tested beside each other.
    monkeypatch.setattr(compiled, "part", None)


@pytest.fixture
def small_pieces(monkeypatch):
    """Uploads what is over 512 KiB in pieces of that size, instead of 8 MiB."""
    # Dozens of tests would upload tens of megabytes each.
    for name in (
        "gristmill.dataset.storage.gcs.PIECE_BYTES",
        "google.cloud.storage.blob._MAX_MULTIPART_SIZE",
    ):
        monkeypatch.setattr(name, 512 << 10)


@pytest.fixture(params=["compiled", "python"])
def decoding(request):
    """Runs a test with the compiled part, and without it."""
    from gristmill.dataset.arrayrecord import compiled

    if request.param == "python":
        request.getfixturevalue("without_compiled_part")
    elif compiled.decoder() is None:
        pytest.skip("installed without a C compiler")


def pytest_configure(config):
    """Makes the folder that the processes of this run share."""
    if not hasattr(config, "workerinput"):
        os.environ[shared.VARIABLE] = tempfile.mkdtemp(prefix="gristmill-tests-")
        config.add_cleanup(lambda: shutil.rmtree(shared.folder(), ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Returns what `-n auto` means: more than the cores, since many tests wait.

    For disks, servers and processes that start, most of all. Each process takes half a
    gigabyte and ten seconds to find the tests, so that twice the cores are too many.
    """
    cores = len(os.sched_getaffinity(0))
    return min(16, cores + -(-cores // 2))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keeps what the tests import out of every later search for circles.

    Those are millions of objects, which live to the end: to search them takes a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        memory.give_back()
        if "apache_beam" in sys.modules:
            beam_memory.remember()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Leaves out soaks, and puts the tests that run alone first.

    So others wait for them once. Then come those that are marked `first`, one after
    another in the same process: in several, they would wait for each other. A search
    by Hypothesis is a soak too: without one, it tries fewer examples.
    """
    _share_examples(config, items)
    for item in shares.rare(items):
        item.add_marker(pytest.mark.soak)
    if not _wants_soaks(config):
        soaks = [item for item in items if item.get_closest_marker("soak")]
        config.hook.pytest_deselected(items=soaks)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    items.sort(
        key=lambda item: [
            item.get_closest_marker(m) is None for m in ("alone", "first")
        ]
    )
    for item in items:
        if item.get_closest_marker("timeout"):
            continue
        if item.get_closest_marker("soak"):
            item.add_marker(pytest.mark.timeout(SOAK_TIMEOUT_SECONDS))
        elif not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.timeout(QUICK_TIMEOUT_SECONDS))


def pytest_runtest_setup(item):
    """Lets a soak run until its own timeout, which is longer."""
    if item.get_closest_marker("soak"):
        faulthandler.cancel_dump_traceback_later()


def _wants_soaks(config):
    """Returns whether `-m` asks for soaks, and not for tests without them."""
    return "soak" in config.option.markexpr.replace("not soak", "")


def _share_examples(config, items):
    """Has Hypothesis try fewer examples, or makes its tests soaks of all of them."""
    if config.getoption("--hypothesis-profile"):
        return
    functions = set()
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if getattr(function, "is_hypothesis_test", False):
            functions.add(function)
            if _wants_soaks(config):
                item.add_marker(pytest.mark.soak)
    if _wants_soaks(config):
        return
    for function in functions:
        found = function._hypothesis_internal_use_settings or hypothesis.settings()
        examples = -(-found.max_examples // EXAMPLES_DIVISOR)
        fewer = hypothesis.settings(found, max_examples=examples)
        function._hypothesis_internal_use_settings = fewer


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Gives back memory after the last test of a file."""
    if nextitem is None or nextitem.path != item.path:
        memory.give_back()


# Around all else, so that no timeout counts the time that a test waits here.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Lets nothing else run while a test that is marked `alone` does."""
    with shared.running(alone=item.get_closest_marker("alone") is not None):
        return (yield)
