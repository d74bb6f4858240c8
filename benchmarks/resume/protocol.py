"""The protocol between the test of resuming and a loader's adapter.

An adapter is a module of `benchmarks.resume.loaders`:

    TITLE = "Loader"               # for people
    PACKAGES = ("package",)        # whose versions are printed; the first is the loader
    FORMAT = "tar"                 # of its files, which `formats` writes; or
    def write(folder, shards)      # writes a dataset in the loader's format
    def append(folder, shards)     # adds records, if not as `write` does
    def write_packed(folder, shards)  # optional: a dataset of another kind, for packing
    NOT_OFFERED = {"packing": "why"}  # optional: cases that need what it does not have
    class Loader:                  # one host's part
        def __init__(self, job)    # makes it
        def restore(self, states)  # goes to a state, before the first batch
        def next(self)             # this host's rows of the next global batch
        def state(self) -> bytes   # as it would be saved beside the model

A record is as many uint32 as `records.lengths` says, each the record's number: so a
record, and every token of a packed row, says of itself which record it is. `next`
returns numbers of records, or with packing the tokens of the rows; `StopIteration` ends
the epoch.
"""

import dataclasses

import numpy as np

SEED = 7
PACKED_TOKENS = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """What one host is to load.

    Attributes:
        folders: The dataset, or those of a mixture.
        weights: Their shares of the rows; the datasets end together.
        batch: Rows of the global batch, over all hosts.
        host: Which host this is, of `hosts`.
        hosts: How many hosts read.
        workers: Processes that each host reads with; 0 for none.
        packing: Whether rows are packed, `PACKED_TOKENS` long.
        epoch_steps: Steps of an epoch, for a loader that does not know its end.
    """

    folders: tuple[str, ...]
    weights: tuple[float, ...] = (1.0,)
    batch: int
    host: int
    hosts: int
    workers: int = 0
    packing: bool = False
    epoch_steps: int

    @property
    def rows(self):
        """Rows of this host."""
        return self.batch // self.hosts

    def own(self, states):
        """Returns this host's state; with other hosts than were saved, there is none.

        Then it is the state of a host that was there, since that is what a user has.
        """
        return states[self.host % len(states)]


def number_of(record):
    """Returns the number of a record."""
    return int.from_bytes(record[:4], "little")


def numbers_of(records):
    """Returns the numbers of records."""
    return np.array([number_of(record) for record in records])


def tokens_of(record):
    """Returns the tokens of a record."""
    return np.frombuffer(record, "<u4").astype(np.int64)
