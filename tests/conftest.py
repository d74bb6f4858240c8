"""Settings that all tests share."""

import os
import signal

import hypothesis
import pytest

# Before anything imports TensorFlow: no log on stderr, no search for accelerators.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Before JAX makes its devices, and for the processes that tests start: it has eight
# devices, all of them this CPU.
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

# What a shell starts in the background ignores Ctrl-C, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, so that a failure is one for everybody. Search for
# new ones with `--hypothesis-profile search`.
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=100
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keeps what tests and their processes cache out of the user's directories."""
    os.environ["GRISTMILL_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
