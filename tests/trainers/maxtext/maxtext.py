"""A stand-in for MaxText: the functions that gristmill replaces or calls, and settings.

Their signatures and the settings are those of the interface that was recorded from the
real MaxText, tests/trainers/maxtext/interface.json. What they do is as little as shows
what reaches them, with the operations of Grain that MaxText's pipeline has.
"""

from __future__ import annotations

import functools
import inspect
import json
import pathlib
import re
import types
from collections.abc import Iterator
from typing import Any

import grain
import grain.experimental
import jax
import numpy as np

from tests.trainers.maxtext.maxtext_trainers import add_trainers

RECORDED = json.loads((pathlib.Path(__file__).with_name("interface.json")).read_text())
LENGTH = 16
RECORDS = 53


def record_of(number: int) -> bytes:
    """Returns a record of letters, which the stand-in takes for tokens."""
    return f"{number:03}".encode() + b"x" * (number % 11)


def numbers_of(inputs: Any) -> list[int]:
    """Returns the numbers of the records in arrays of the stand-in, in their order."""
    text = np.asarray(inputs).astype(np.uint8).tobytes()
    return [int(found) for found in re.findall(rb"\d{3}", text)]


def files_of(dataset: str, split: str) -> str:
    """Returns the pattern of the files of a split."""
    return str(pathlib.Path(dataset) / f"d-{split}.array_record*")


def config_of(**changes: Any) -> types.SimpleNamespace:
    """Returns MaxText's settings: its defaults, small sizes, and changes."""
    settings = {name: known["default"] for name, known in RECORDED["settings"].items()}
    unknown = changes.keys() - settings.keys() - {"per_device_batch_size", "vocab_size"}
    assert not unknown, unknown
    size = changes.get("global_batch_size_to_load", 8)
    return types.SimpleNamespace(
        **settings
        | {
            "dataset_type": "grain",
            "grain_worker_count": 0,
            "grain_worker_count_eval": 0,
            "global_batch_size_to_load": size,
            "global_batch_size_to_train_on": size,
            "global_batch_size_to_load_eval": size,
            "global_batch_size_to_eval_on": size,
            "is_offline_distillation": False,
            "max_target_length": LENGTH,
            "vocab_size": 65_536,
        }
        | changes
    )


class MultiHostDataLoadIterator:
    """As MaxText's, but it gives the arrays of this host as they are."""

    def __init__(
        self,
        dataloader: Any,
        global_mesh: Any,
        generate_padding_batch: bool = False,
        expansion_loading_factor_for_grain: int = -1,
    ) -> None:
        self.dataloader, self.generate_padding_batch = (
            dataloader,
            generate_padding_batch,
        )
        self.reset()

    def reset(self) -> None:
        """Begins anew."""
        self.local_iterator = iter(self.dataloader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.reset()
        return self.local_iterator

    def __next__(self) -> dict[str, Any]:
        return self._get_next_batch_sharded()

    def _get_next_batch_sharded(self) -> dict[str, Any]:
        return next(self.local_iterator)


def get_local_batch_size(config: Any) -> int:
    """Rows of this host."""
    return config.global_batch_size_to_load // jax.process_count()


def _row_of(record: bytes) -> dict[str, Any]:
    return {"inputs": np.frombuffer(record, np.uint8).astype(np.int32)}


def _padded(row: dict[str, Any], length: int) -> dict[str, Any]:
    ids = row["inputs"][:length]
    return {"inputs": np.pad(ids, (0, length - len(ids)))}


def _preprocessed(dataset: Any, config: Any, workers: int, elastic: Any) -> Any:
    dataset, length = dataset.map(_row_of), config.max_target_length
    rows = get_local_batch_size(config)
    if config.packing:
        dataset = grain.experimental.FirstFitPackIterDataset(
            dataset, length_struct={"inputs": length}, num_packing_bins=rows
        )
    else:
        dataset = dataset.map(functools.partial(_padded, length=length))
    if config.grain_use_elastic_iterator:
        return elastic(
            dataset,
            config.global_batch_size_to_load,
            grain.sharding.ShardOptions(shard_index=0, shard_count=1),
        )
    batch_fn = functools.partial(
        grain.experimental.batch_and_pad, batch_size=rows, pad_value=0
    )
    dataset = dataset.batch(rows, batch_fn=batch_fn)
    return dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def find_data_files(data_file_pattern: str, hf_access_token: Any = None) -> list[str]:
    """Local files, in an order that is not the sorted one."""
    path = pathlib.Path(data_file_pattern)
    return sorted(map(str, path.parent.glob(path.name)), reverse=True)


def modules() -> dict[str, types.ModuleType]:
    """Returns new modules of a MaxText, by their names."""
    found: dict[str, types.ModuleType] = {}

    def module(name: str) -> Any:
        for parent in [name[:at] for at, sign in enumerate(name) if sign == "."]:
            module(parent)
        if name not in found:
            found[name] = types.ModuleType(name)
            above, _, last = name.rpartition(".")
            if above:
                setattr(found[above], last, found[name])
        return found[name]

    processing = module("maxtext.input_pipeline.grain_data_processing")
    interface = module("maxtext.input_pipeline.input_pipeline_interface")
    loading = module("maxtext.input_pipeline.multihost_dataloading")

    def get_datasets(*args: Any, **named: Any) -> Any:
        raise AssertionError("MaxText reads the data itself")

    def make(config: Any, mesh: Any, process_indices: Any, name: str) -> Any:
        train = name == "train"
        end = "" if train else "_eval"
        dataset = processing.get_datasets(
            getattr(config, f"grain_{name}_files"),
            config.grain_file_type,
            shuffle=config.enable_data_shuffling if train else False,
            shuffle_seed=config.data_shuffle_seed,
            shuffle_buffer_size=config.grain_shuffle_buffer_size,
            num_epoch=config.num_epoch if train else 1,
            dataloading_host_index=process_indices.index(jax.process_index()),
            dataloading_host_count=len(process_indices),
            grain_worker_count=getattr(config, f"grain_worker_count{end}"),
            grain_num_threads=getattr(config, f"grain_num_threads{end}"),
            grain_prefetch_buffer_size=getattr(
                config, f"grain_prefetch_buffer_size{end}"
            ),
            grain_data_source_max_workers=config.grain_data_source_max_workers,
            grain_index_storage_option=config.grain_index_storage_option,
            hf_access_token=config.hf_access_token,
            dataset_config=None,
            split=name,
            **(
                {
                    "mixture_config_path": config.grain_train_mixture_config_path,
                    "elastic": config.grain_use_elastic_iterator,
                }
                if train
                else {}
            ),
        )
        workers = getattr(config, f"grain_worker_count{end}")
        return loading.MultiHostDataLoadIterator(
            _preprocessed(dataset, config, workers, processing.ElasticIterator),
            mesh,
            getattr(config, f"generate_padding_batch_{name}"),
        )

    def make_grain_train_iterator(
        config: Any, global_mesh: Any, process_indices: Any
    ) -> Any:
        return make(config, global_mesh, process_indices, "train")

    def make_grain_eval_iterator(
        config: Any, global_mesh: Any, process_indices: Any
    ) -> Any:
        return make(config, global_mesh, process_indices, "eval")

    def create_data_iterator(config: Any, mesh: Any) -> Any:
        train = interface.make_grain_train_iterator(config, mesh, [0])
        if config.eval_interval > 0:
            return train, interface.make_grain_eval_iterator(config, mesh, [0])
        return train, None

    def for_restore(
        checkpoint_manager: Any,
        step: int,
        data_iterator: Any,
        expansion_factor_real_data: int,
    ) -> Any:
        return "restored"

    processing.get_datasets = get_datasets
    processing.ElasticIterator = grain.experimental.ElasticIterator
    processing.find_data_files = find_data_files
    processing.make_grain_train_iterator = make_grain_train_iterator
    processing.make_grain_eval_iterator = make_grain_eval_iterator
    interface.make_grain_train_iterator = make_grain_train_iterator
    interface.make_grain_eval_iterator = make_grain_eval_iterator
    interface.create_data_iterator = create_data_iterator
    # A class of its own, as its methods are replaced.
    loading.MultiHostDataLoadIterator = type(
        "MultiHostDataLoadIterator", (MultiHostDataLoadIterator,), {}
    )
    add_trainers(module)
    utils = module("maxtext.input_pipeline.data_processing_utils")
    utils.get_local_batch_size = get_local_batch_size
    checkpoints = module("maxtext.common.grain_utility")
    checkpoints.ElasticIterator = grain.experimental.ElasticIterator
    checkpoints.for_restore = for_restore
    module("maxtext.utils.max_logging").log = lambda user_str: print(user_str)
    return found


def parameters_of(function: Any) -> list[list[str | None]]:
    """Returns the parameters of a function as they are recorded."""
    return [
        [
            each.name,
            each.kind.name,
            None if each.default is each.empty else repr(each.default),
        ]
        for each in inspect.signature(function).parameters.values()
    ]
