"""Settings that all tests share."""

import os

import hypothesis

# Before anything imports TensorFlow: no log on stderr, no search for accelerators.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

# The same examples in every run, so that a failure is one for everybody. Search for
# new ones with `--hypothesis-profile search`.
hypothesis.settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=100
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=2000)
hypothesis.settings.load_profile("default")
