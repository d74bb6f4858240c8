"""Trains MaxText on whole batches of gristmill; no file of MaxText is changed.

It takes MaxText's own arguments, and replaces what reads the training data:

    python examples/maxtext_feed.py base.yml run_name=first packing=false \
        dataset_type=grain grain_train_files=/data/c4 train_data_columns=text ...

Row r of step s is the same record on any number of hosts, before and after a restart.
Each row is one record: a row of tokens that `gristmill pack` made, or a text, cut or
padded to `max_target_length`. A setting of MaxText that this feed cannot honour is
refused by its name.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader
from gristmill.dataset import InputError

_OWN_PIPELINE = "use MaxText's own pipeline"
_ANY_HOSTS = "leave it out: a checkpoint of this feed resumes on any number of hosts"

# Settings of MaxText that this feed cannot honour: the values that ask for nothing, and
# what to do about others.
CANNOT: dict[str, tuple[tuple[object, ...], str]] = {
    "colocated_python_data_input": ((False,), _OWN_PIPELINE),
    "elastic_enabled": ((False,), _OWN_PIPELINE),
    "expansion_factor_real_data": ((-1, 1), _ANY_HOSTS),
    "grain_file_type": (("arrayrecord",), "convert the data by gristmill"),
    "grain_train_mixture_config_path": (("",), _OWN_PIPELINE),
    "grain_use_elastic_iterator": ((False,), _ANY_HOSTS),
    "tokenize_train_data": ((True,), _OWN_PIPELINE),
    "use_dpo": ((False,), _OWN_PIPELINE),
    "use_multimodal": ((False,), _OWN_PIPELINE),
    "use_sft": ((False,), _OWN_PIPELINE),
    "use_truncation": ((True,), _OWN_PIPELINE),
}


def check(config: Any) -> None:
    """Raises InputError for the first setting that this feed cannot honour."""
    for name, (neutral, cure) in CANNOT.items():
        if getattr(config, name) not in neutral:
            raise _refused(config, name, repr(neutral[0]), cure)
    if ";" in config.grain_train_files:
        cure = f"give one dataset, or {_OWN_PIPELINE}"
        raise _refused(config, "grain_train_files", "one dataset, no mixture", cure)
    if config.grain_worker_count < 0:
        cure = "choose a number; `gristmill bench-loader` measures what each is worth"
        raise _refused(config, "grain_worker_count", "0 (threads) or more", cure)
    if config.global_batch_size_to_load != config.global_batch_size_to_train_on:
        cure = f"train on every row that is read, or {_OWN_PIPELINE}"
        raise _refused(config, "per_device_batch_size", "1 or more", cure)


def _refused(config: Any, name: str, expected: str, cure: str) -> InputError:
    return InputError(
        f"the feed of gristmill cannot honour {name} of MaxText",
        expected=expected,
        got=repr(getattr(config, name)),
        cure=cure,
    )


@dataclasses.dataclass(frozen=True)
class TextRows:
    """Makes rows of tokens from records, each the target of the one before it.

    Padding has the segment 0, and so counts neither in attention nor in the loss. What
    is padding follows from its place in the row: any id may be a token.

    Attributes:
        column: The feature with the text.
        length: Tokens of a row.
        encode: Returns the tokens of a text.
        rows: Rows of this host. The last batch of the last epoch may have fewer
            records; the other rows are empty then.
    """

    column: str
    length: int
    encode: Callable[[str], Sequence[int]]
    rows: int

    def __call__(self, records: Sequence[bytes]) -> dict[str, np.ndarray]:
        """Returns the arrays that MaxText trains on, int32 [rows, length]."""
        text = loader.ExampleDecoder({self.column: loader.FixedFeature(bytes)})
        tokens = np.zeros((self.rows, self.length + 1), np.int32)
        sizes = np.zeros((self.rows, 1), np.int32)
        for row, one in enumerate(text(records)[self.column] if records else ()):
            ids = self.encode(one.decode())[: self.length + 1]
            tokens[row, : len(ids)] = ids
            sizes[row] = len(ids)
        places = np.arange(self.length, dtype=np.int32)
        position = np.tile(places, (self.rows, 1))
        return {
            "inputs": tokens[:, :-1],
            "inputs_position": position,
            "inputs_segmentation": (places < sizes).astype(np.int32),
            "targets": tokens[:, 1:],
            "targets_position": position,
            "targets_segmentation": (places < sizes - 1).astype(np.int32),
        }


@dataclasses.dataclass(frozen=True)
class FilledRows:
    """Fills up the last batch of the last epoch with empty rows.

    Attributes:
        decode: Makes the arrays of the records that there are.
        rows: Rows of this host.
    """

    decode: loader.PackedRows
    rows: int

    def __call__(self, records: Sequence[bytes]) -> dict[str, np.ndarray]:
        """Returns the arrays that MaxText trains on, int32 [rows, length]."""
        missing = (0, self.rows - len(records)), (0, 0)
        arrays = self.decode(records).items()
        return {name: np.pad(array, missing) for name, array in arrays}


def decode_of(
    config: Any,
    dataset: loader.Dataset,
    encode: Callable[[str], Sequence[int]],
    rows: int,
) -> Callable[[Sequence[bytes]], dict[str, np.ndarray]]:
    """Returns what makes MaxText's arrays of the records of a dataset."""
    if dataset.packed_counts() is not None:
        packed = loader.PackedRows.of(dataset, length=config.max_target_length)
        return FilledRows(packed, rows)
    if config.packing:
        cure = f"use gristmill pack, set packing=false, or {_OWN_PIPELINE}"
        raise _refused(config, "packing", "False", cure)
    (column,) = config.train_data_columns
    return TextRows(column, config.max_target_length, encode, rows)


def open_dataset(config: Any) -> loader.Dataset:
    """Opens `grain_train_files`: a dataset's directory, or files by a pattern."""
    path = config.grain_train_files
    plain = re.search(r"[*?\[]", path)  # Files have no splits.
    return loader.open(path, split=None if plain else config.train_split)


def feed_of(
    config: Any, mesh: Mesh, encode: Callable[[str], Sequence[int]]
) -> loader.Feed:
    """Returns the feed of this host, with the rows that its devices hold."""
    check(config)
    dataset = open_dataset(config)
    batches = loader.global_batches(
        dataset,
        batch_size=config.global_batch_size_to_load,
        seed=config.data_shuffle_seed,
        shuffle="global" if config.enable_data_shuffling else "none",
        epochs=config.num_epoch,
        drop_remainder=False,
    )
    on_all = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    rows = loader.rows_of(on_all, batch_size=batches.batch_size)
    return batches.feed(
        decode=decode_of(config, dataset, encode, len(rows)),
        rows=rows,
        workers=config.grain_worker_count,
    )


def make_train_iterator(config: Any, mesh: Mesh, process_indices: Any) -> Any:
    """Stands in for MaxText's `make_grain_train_iterator`."""
    from maxtext.input_pipeline import data_processing_utils, multihost_dataloading

    tokenizer, _ = data_processing_utils.get_tokenizer_and_pad_id(config)
    return multihost_dataloading.MultiHostDataLoadIterator(
        feed_of(config, mesh, tokenizer.encode),
        mesh,
        config.generate_padding_batch_train,
    )


def install() -> None:
    """Puts the feed in the place of MaxText's reader, in this process."""
    from maxtext.common import grain_utility
    from maxtext.input_pipeline import input_pipeline_interface

    input_pipeline_interface.make_grain_train_iterator = make_train_iterator
    # One state for all hosts, in one file that any number of hosts can restore.
    grain_utility.ElasticIterator = (grain_utility.ElasticIterator, loader.Feed)


if __name__ == "__main__":
    from absl import app
    from maxtext.trainers.pre_train import train

    install()
    app.run(train.main, sys.argv)
