"""Functions that feeds call in worker processes, which import little to have them."""

import sys
import time

import numpy as np


def lengths(records):
    """A tree of arrays of many kinds."""
    import ml_dtypes

    counts = np.array([len(record) for record in records], np.int32)
    return {
        "lengths": counts,
        "heads": [np.frombuffer(record[:1], np.uint8) for record in records],
        "none": np.empty((0, 4), np.float64),
        "texts": np.array(records, object),
        "by columns": np.asfortranarray(np.stack([counts, 2 * counts], axis=1)),
        "every other": np.repeat(counts, 2)[::2],
        "half": counts.astype(ml_dtypes.bfloat16),
        "pairs": np.array([(1, 2.5)] * len(records), [("a", "<i4"), ("b", "<f8")]),
        "number": np.float32(len(records)),
    }


def large(records):
    """More than goes through a pipe at once."""
    return np.full((len(records), 20_000), len(records[0]), np.int64)


def lazily(records):
    """A generator, which does not pickle."""
    return (len(record) for record in records)


def with_function(records):
    """An array beside what does not pickle."""
    return {"lengths": np.array([len(record) for record in records]), "f": lambda: 1}


class Failing:
    """Fails at a record, in one of many ways."""

    def __init__(self, record, how):
        self.record, self.how = record, how

    def __call__(self, records):
        if self.record in records:
            getattr(self, self.how)()
        return [len(record) for record in records]

    def value_error(self):
        raise ValueError("not a cat")

    def unpicklable_error(self):
        class LocalError(Exception):
            pass

        raise LocalError("not a dog")

    def stop_iteration(self):
        next(iter(()))

    def leave(self):
        sys.exit(0)

    def panic(self):
        class PanicException(BaseException):
            """As extensions in Rust raise it."""

        raise PanicException("index out of bounds")

    def hang(self):
        time.sleep(3600)
