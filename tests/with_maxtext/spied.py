"""Runs a module of MaxText, or of gristmill for it, and saves the batches it trains on.

    python spied.py FOLDER MODULE arguments...

Batch n that iterator i gives to process p becomes `FOLDER/i-n-p.npz`: its rows of the
global arrays. Iterator 0 is that of training, 1 that of evaluation.
"""

import pathlib
import runpy
import sys

import numpy as np


def spy(folder):
    """Makes MaxText's iterators save what they give, in this process."""
    import jax
    from maxtext.input_pipeline import multihost_dataloading

    iterator = multihost_dataloading.MultiHostDataLoadIterator
    make, give = iterator.__init__, iterator.__next__
    made = []

    def init(self, *args, **kwargs):
        make(self, *args, **kwargs)
        self.spied = len(made), []
        made.append(self.spied)

    def next_batch(self):
        batch = give(self)
        number, given = self.spied
        arrays = {name: _here(array) for name, array in sorted(batch.items())}
        name = f"{number}-{len(given):05}-{jax.process_index()}"
        np.savez(folder / name, **arrays)
        given.append(name)
        return batch

    iterator.__init__, iterator.__next__ = init, next_batch


def _here(array):
    """Returns the rows of a global array that this process holds, in their order."""
    shards = {
        shard.index[0].start or 0: shard.data for shard in array.addressable_shards
    }
    return np.concatenate([np.asarray(shards[row]) for row in sorted(shards)])


if __name__ == "__main__":
    directory, module, *arguments = sys.argv[1:]
    spy(pathlib.Path(directory))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
