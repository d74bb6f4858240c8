"""MaxText's input: its own Grain pipeline beside gristmill's."""

import pathlib
import sys

from benchmarks.contest import (
    Contest,
    Contestant,
    Peer,
    describe_environment,
    main,
    make,
    said_by,
)
from benchmarks.cost import steadily
from benchmarks.pack import LENGTH, write_rows, write_texts
from tests.with_maxtext.environment import ROOT, in_namespace, install

_ROWS = 48
_PACKAGES = ("maxtext", "jax", "grain", "numpy", "tokenizers")
_CASES = {"in its own process": 0, "1 worker, the default": 1}
_WORKER = [*_CASES][1]
_FILES = {
    "maxtext": "texts/*.array_record*",
    "gristmill_records": "texts",
    "gristmill_packed": "rows",
}


class MaxText(Contest):
    """MaxText's input.

    MaxText's own pipeline, and `gristmill.loader.maxtext` on the same documents or
    on rows that `gristmill pack` made of them, up to the arrays that MaxText trains
    on: batches of 48 rows of 2,048 tokens, with Qwen 3's tokenizer. A token counts
    where it is not padding. `--venv` is an environment with MaxText, made if it is
    not there (`tests.with_maxtext`).
    """

    name = "maxtext"
    unit = "M tokens"
    reference = ("maxtext",)
    contestants = {
        "gristmill_packed": Contestant("packed rows by gristmill", option="venv"),
        "gristmill_records": Contestant("records by gristmill", option="venv"),
        "maxtext": Contestant("MaxText's own pipeline", option="venv"),
    }
    options = {
        "bytes": (30_000_000, 3_000_000, "of text"),
        "seconds": (4.0, 0.5, "of each run"),
        "venv": (None, None, "environment with MaxText"),
        "python": ("3.12", "3.12", "to make it with"),
    }
    peers = (
        Peer(
            "MaxText's own Grain pipeline",
            "maxtext",
            "rows that `gristmill pack` made before; 1 worker, the default",
            "gristmill_packed",
            "maxtext",
            _WORKER,
        ),
        Peer(
            "MaxText's own Grain pipeline",
            "maxtext",
            "the same work on records by gristmill; 1 worker, the default",
            "gristmill_records",
            "maxtext",
            _WORKER,
            True,
        ),
    )

    def cases(self):
        """Writes documents, and packed rows of them."""
        self._environment = None
        if self.args.venv is None:
            return
        venv = pathlib.Path(self.args.venv)
        self._python = install(venv, self.args.python)
        code = "import maxtext, os; print(os.path.dirname(maxtext.__file__))"
        self._package = said_by(self._python, "-c", code).split()[-1]
        inputs = self.work / "in"
        write_texts(inputs, self.args.bytes)
        make("convert", inputs, self.work / "texts", "--match-shards")
        tokenizer = f"{self._package}/assets/tokenizers/qwen3-tokenizer/tokenizer.json"
        write_rows(inputs, self.work / "rows", tokenizer)
        for case in _CASES:
            yield case, [*self.contestants]

    def environment(self):
        """Returns that of MaxText, where it was used."""
        return self._environment or super().environment()

    def measure(self, case, key):
        """Feeds for a while, in MaxText's environment."""
        program = self.program(
            "feed", key, self.work, _CASES[case], self._package, self.args.seconds
        )
        command = in_namespace([self._python, *program[1:]])
        run = self.run(command, directory=ROOT)
        self._environment = run.pop("environment")
        return run


def feed(key, work, workers, package, seconds):
    """Measures MaxText's data iterator, in M tokens."""
    import numpy as np
    from absl import flags
    from maxtext.configs import pyconfig
    from maxtext.input_pipeline import input_pipeline_interface
    from maxtext.utils import maxtext_utils

    if key != "maxtext":
        from gristmill.loader import maxtext as ours

        ours.install()
    flags.FLAGS(["benchmark"])  # Grain reads some, in pipelines with workers.
    config = pyconfig.initialize(
        [
            "benchmark",
            f"{package}/configs/base.yml",
            "run_name=benchmark",
            "hardware=cpu",
            "skip_jax_distributed_system=true",
            f"base_output_directory={work}",
            f"jax_cache_dir={work}/compiled",
            "dataset_type=grain",
            "grain_file_type=arrayrecord",
            "train_data_columns=['text']",
            f"grain_train_files={work}/{_FILES[key]}",
            f"grain_worker_count={workers}",
            f"max_target_length={LENGTH}",
            f"per_device_batch_size={_ROWS}",
            f"tokenizer_path={package}/assets/tokenizers/qwen3-tokenizer",
            "tokenizer_type=huggingface",
            "vocab_size=200000",
            "num_epoch=100000",
        ]
    )
    mesh = maxtext_utils.get_mesh_from_config(config)
    batches, _ = input_pipeline_interface.create_data_iterator(config, mesh)
    batches = iter(batches)
    # To count all would be a good part of the time that packed rows take.
    tokens = np.count_nonzero(next(batches)["inputs_segmentation"])

    def step():
        next(batches)
        return 1

    warm = 400 if key == "gristmill_packed" else 8
    run = steadily(step, warm=warm, seconds=float(seconds))
    tokens = run["work"] * int(tokens) / 1e6
    return {**run, "work": tokens, "environment": describe_environment(_PACKAGES)}


if __name__ == "__main__":
    sys.exit(main(MaxText))
