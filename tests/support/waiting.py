"""A wait for what another thread or process does, however busy the machine is."""

import time

# It bounds a hang only: nothing that works comes near.
_HANG_SECONDS = 60.0


def until(condition, *, seconds=_HANG_SECONDS):
    """Returns once a condition holds; fails where it never does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"it did not happen in {seconds} seconds"
        time.sleep(0.005)
