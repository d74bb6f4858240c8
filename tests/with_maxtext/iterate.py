"""Makes data iterators of MaxText, without training, and saves what they give.

    python iterate.py JOBS.json

JOBS.json lists jobs: each a `name`, the `arguments` of MaxText, and a number of
`batches`. Beside it, batch n becomes `NAME-n.npz`, and an error `NAME.error`.
"""

import json
import pathlib
import sys

import numpy as np


def iterate(folder, job):
    """Saves the batches of one job, as many as there are."""
    from maxtext.configs import pyconfig
    from maxtext.input_pipeline import input_pipeline_interface
    from maxtext.utils import maxtext_utils

    config = pyconfig.initialize(["iterate", *job["arguments"]])
    mesh = maxtext_utils.get_mesh_from_config(config)
    # Looked up here: it may have been replaced.
    iterator, _ = input_pipeline_interface.create_data_iterator(config, mesh)
    given = iter(iterator)
    for number in range(job["batches"]):
        try:
            batch = next(given)
        except StopIteration:
            break
        arrays = {name: np.asarray(array) for name, array in batch.items()}
        np.savez(folder / f"{job['name']}-{number:05}", **arrays)


def main():
    """Runs all jobs; an error of one does not keep the others from running."""
    from absl import flags

    from gristmill.loader import maxtext

    flags.FLAGS(sys.argv[:1])  # Grain reads some, in pipelines with workers.
    maxtext.install()
    jobs = pathlib.Path(sys.argv[1])
    for job in json.loads(jobs.read_text()):
        try:
            iterate(jobs.parent, job)
        except Exception as e:
            error = jobs.with_name(f"{job['name']}.error")
            error.write_text(f"{type(e).__name__}: {e}")


if __name__ == "__main__":
    main()
