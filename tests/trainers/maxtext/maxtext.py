"""A stand-in for MaxText: the functions that gristmill replaces or calls, and settings.

Their signatures and the settings are those of the interface that was recorded from the
real MaxText, tests/trainers/maxtext/interface.json. What they do is as little as shows
what reaches them, with the operations of Grain that MaxText's pipeline has.
"""

import contextlib
import functools
import json
import pathlib
import re
import types

import grain
import grain.experimental
import jax
import numpy as np

RECORDED = json.loads((pathlib.Path(__file__).with_name("interface.json")).read_text())
GET_DATASETS = "maxtext.input_pipeline.grain_data_processing.get_datasets"
LENGTH = 16
RECORDS = 53


def record_of(number):
    """Returns a record of letters, which the stand-in takes for tokens."""
    return f"{number:03}".encode() + b"x" * (number % 11)


def numbers_of(batches):
    """Returns the numbers of the records in batches of the stand-in, in their order."""
    arrays = [np.asarray(batch["inputs"]).astype(np.uint8) for batch in batches]
    text = b"".join(array.tobytes() for array in arrays)
    return [int(found) for found in re.findall(rb"\d{3}", text)]


def config_of(**changes):
    """Returns MaxText's settings: its defaults, small sizes, and changes."""
    settings = {name: known["default"] for name, known in RECORDED["settings"].items()}
    unknown = changes.keys() - settings.keys() - {"per_device_batch_size", "vocab_size"}
    assert not unknown, unknown
    sizes = [
        *("global_batch_size_to_load", "global_batch_size_to_train_on"),
        *("global_batch_size_to_load_eval", "global_batch_size_to_eval_on"),
    ]
    small = {"max_target_length": LENGTH, "vocab_size": 65_536}
    small |= {"grain_worker_count": 0, "grain_worker_count_eval": 0}
    given = {"dataset_type": "grain", "is_offline_distillation": False}
    settings |= dict.fromkeys(sizes, 8) | small | given
    return types.SimpleNamespace(**settings | changes)


class StopTraining(Exception):  # noqa: N818 - MaxText's name.
    """What MaxText makes of every error of the data."""


@contextlib.contextmanager
def loader_exception_guard(config):
    try:
        yield
    except Exception as e:
        raise StopTraining(f"{type(e)} exception: ({e})") from None


class MultiHostDataLoadIterator:
    """As MaxText's, but it gives the arrays of this host as they are."""

    def __init__(
        self,
        dataloader,
        global_mesh,
        generate_padding_batch=False,
        expansion_loading_factor_for_grain=-1,
    ):
        self.dataloader = dataloader
        self.generate_padding_batch = generate_padding_batch
        self.reset()

    def reset(self):
        """Begins anew."""
        self.local_iterator = iter(self.dataloader)

    def __iter__(self):
        self.reset()
        return self.local_iterator

    def __next__(self):
        return self._get_next_batch_sharded()

    def _get_next_batch_sharded(self):
        return next(self.local_iterator)


def get_local_batch_size(config):
    """Rows of this host."""
    return config.global_batch_size_to_load // jax.process_count()


def log(user_str):
    print(user_str)


def for_restore(
    checkpoint_manager, step, data_iterator, expansion_factor_real_data
): ...


def row_of(record, length):
    ids = np.frombuffer(record, np.uint8).astype(np.int32)
    if length:
        ids = np.pad(ids[:length], (0, max(0, length - len(ids))))
    return {"inputs": ids}


def preprocessed(dataset, config, workers, elastic):
    length, rows = config.max_target_length, get_local_batch_size(config)
    fixed = 0 if config.packing else length
    dataset = dataset.map(functools.partial(row_of, length=fixed))
    if config.packing:
        dataset = grain.experimental.FirstFitPackIterDataset(
            dataset, length_struct={"inputs": length}, num_packing_bins=rows
        )
    if config.grain_use_elastic_iterator:
        shard = grain.sharding.ShardOptions(shard_index=0, shard_count=1)
        return elastic(dataset, config.global_batch_size_to_load, shard)
    padded = {"batch_size": rows, "pad_value": 0}
    batch_fn = functools.partial(grain.experimental.batch_and_pad, **padded)
    options = grain.MultiprocessingOptions(num_workers=workers)
    return dataset.batch(rows, batch_fn=batch_fn).mp_prefetch(options)


def modules():
    """Returns new modules of a MaxText, by their names."""
    found = {}

    def module(name, **attributes):
        above, _, last = name.rpartition(".")
        if above and above not in found:
            module(above)
        made = found.setdefault(name, types.ModuleType(name))
        vars(made).update(attributes)
        if above:
            setattr(found[above], last, made)
        return made

    def make(config, process_indices, name):
        end = "" if name == "train" else "_eval"
        given = {
            "dataloading_host_index": process_indices.index(jax.process_index()),
            "dataloading_host_count": len(process_indices),
            "elastic": not end and config.grain_use_elastic_iterator,
        }
        names = [name for name, _, _ in RECORDED["signatures"][GET_DATASETS]]
        dataset = processing.get_datasets(**dict.fromkeys(names) | given)
        workers = getattr(config, f"grain_worker_count{end}")
        padded = getattr(config, f"generate_padding_batch_{name}")
        dataset = preprocessed(dataset, config, workers, processing.ElasticIterator)
        return loading.MultiHostDataLoadIterator(dataset, None, padded)

    def make_grain_train_iterator(config, global_mesh, process_indices):
        return make(config, process_indices, "train")

    def make_grain_eval_iterator(config, global_mesh, process_indices):
        return make(config, process_indices, "eval")

    def create_data_iterator(config, mesh):
        train = interface.make_grain_train_iterator(config, mesh, [0])
        if config.eval_interval > 0:
            return train, interface.make_grain_eval_iterator(config, mesh, [0])
        return train, None

    elastic = {"ElasticIterator": grain.experimental.ElasticIterator}
    makers = {
        "make_grain_train_iterator": make_grain_train_iterator,
        "make_grain_eval_iterator": make_grain_eval_iterator,
    }
    pipeline = "maxtext.input_pipeline."
    processing = module(
        f"{pipeline}grain_data_processing",
        get_datasets=None,  # MaxText would read the data itself.
        **elastic,
        **makers,
    )
    interface = module(
        f"{pipeline}input_pipeline_interface",
        create_data_iterator=create_data_iterator,
        **makers,
    )
    # A class of its own, as its methods are replaced.
    own = type("MultiHostDataLoadIterator", (MultiHostDataLoadIterator,), {})
    loading = module(f"{pipeline}multihost_dataloading", MultiHostDataLoadIterator=own)
    sizes = {"get_local_batch_size": get_local_batch_size}
    module(f"{pipeline}data_processing_utils", **sizes)
    module("maxtext.common.grain_utility", for_restore=for_restore, **elastic)
    guard = {"loader_exception_guard": loader_exception_guard}
    module("maxtext.common.data_loader", **guard)
    module("maxtext.utils.exceptions", StopTraining=StopTraining)
    module("maxtext.utils.max_logging", log=log)
    return found
