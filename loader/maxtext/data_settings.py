"""MaxText's settings for its training data, or for its evaluation data."""

from __future__ import annotations

import dataclasses
from typing import Any, Self


@dataclasses.dataclass(frozen=True)
class Side:
    """One of MaxText's two data iterators, in the words of the loader.

    Attributes:
        name: "train" or "eval".
        files: The setting that names the data: a directory, a pattern, or a mixture.
        mixture: Path of a JSON file with a mixture; "" without one.
        split: The split of a dataset's directory.
        shuffled: Whether records are shuffled.
        seed: The seed of that.
        epochs: How often each record is seen.
        rows: Rows of the global batch.
        trained: Those of them that MaxText trains on, or evaluates.
        workers: Processes, 0 for threads; -1 to have the number chosen.
        worker_batches: Batches that each of them keeps.
        threads: Records that are read at a time.
        ahead: Records that are read ahead.
        openers: Threads that open the datasets of a mixture.
        padded: Whether batches of padding follow the last one.
    """

    name: str
    files: str
    mixture: str
    split: str
    shuffled: bool
    seed: int
    epochs: int
    rows: int
    trained: int
    workers: int
    worker_batches: int
    threads: int
    ahead: int
    openers: int
    padded: bool

    @classmethod
    def of(cls, config: Any, name: str) -> Self:
        """Reads MaxText's settings."""
        train = name == "train"
        end, rows_end = ("", "train_on") if train else ("_eval", "eval_on")
        return cls(
            name=name,
            files=getattr(config, f"grain_{name}_files"),
            mixture=config.grain_train_mixture_config_path if train else "",
            split=getattr(config, f"{name}_split"),
            # As in MaxText: evaluation is one pass in the order of the records.
            shuffled=bool(config.enable_data_shuffling) and train,
            seed=config.data_shuffle_seed,
            epochs=config.num_epoch if train else 1,
            rows=getattr(config, f"global_batch_size_to_load{end}"),
            trained=getattr(config, f"global_batch_size_to_{rows_end}"),
            workers=getattr(config, f"grain_worker_count{end}"),
            worker_batches=getattr(config, f"grain_per_worker_buffer_size{end}"),
            threads=getattr(config, f"grain_num_threads{end}"),
            ahead=getattr(config, f"grain_prefetch_buffer_size{end}"),
            openers=config.grain_data_source_max_workers,
            padded=getattr(config, f"generate_padding_batch_{name}"),
        )

    def batches_ahead(self, rows: int) -> int:
        """Returns the number of reads that `threads` and `ahead` stand for.

        A thread of Grain reads one record at a time; a read here fetches all of its
        rows together. More threads than that would wait for the interpreter's lock:
        eleven took twice the CPU time of one.
        """
        at_a_time, ahead = (-(-n // max(rows, 1)) for n in (self.threads, self.ahead))
        return max(1, min(at_a_time, ahead))
