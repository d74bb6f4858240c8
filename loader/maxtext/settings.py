"""The settings of MaxText that its Grain pipeline reads, and what becomes of each.

None is ignored: each is honoured, or refused by its name where a value asks for what
cannot be had. `docs/train/maxtext.md` shows the table.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Self, TypeAlias

from gristmill.dataset.base.errors import InputError


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
        """Returns how many reads of so many rows `threads` and `ahead` stand for.

        A thread of Grain reads one record at a time; a read here fetches all of its
        rows together. More threads than that would wait for the interpreter's lock:
        eleven took twice the CPU time of one.
        """
        at_a_time, ahead = (-(-n // max(rows, 1)) for n in (self.threads, self.ahead))
        return max(1, min(at_a_time, ahead))


Way: TypeAlias = Literal["records", "packed"]


@dataclasses.dataclass(frozen=True)
class Only:
    """The values that can be honoured.

    Attributes:
        values: They ask for nothing, or for what is done anyway.
        cure: What to do about another value.
    """

    values: tuple[object, ...]
    cure: str


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings of one kind, and what becomes of them.

    Attributes:
        names: Settings of MaxText. Of a name with `{train,eval}` or `[_eval]`, the one
            for training and the one for evaluation.
        records: What they do where single records are read, or the values that can be.
        packed: The same where rows are packed.
    """

    names: tuple[str, ...]
    records: str | Only
    packed: str | Only

    def of(self, way: Way) -> str | Only:
        """Returns the effect of the settings in a way of reading."""
        return self.records if way == "records" else self.packed


_OWN = "as in MaxText, whose own preprocessing runs"
_SAME = "as in MaxText"
_ROWS = "settled when the rows were packed"
_OTHER_TYPE = "of other file types, as in MaxText"
_UNPACKED = "give it records that are not packed"
_ANY_HOSTS = "leave it out: packed rows resume on any number of hosts"
_NO_PAIRS = "leave it out: pairs of answers are read by Tunix without MaxText"
_WHOLE = "leave it out: packed rows are read in whole batches"

SETTINGS = (
    Setting(
        ("grain_{train,eval}_files", "{train,eval}_split"),
        "a dataset's directory and its split; or files by a pattern; or a mixture "
        "`a,0.7;b,0.3` of these",
        "a dataset's directory and its split, or a mixture of these",
    ),
    Setting(
        ("grain_train_mixture_config_path",),
        "a mixture with names",
        "a mixture with names",
    ),
    Setting(
        ("dataset_type",),
        Only(("grain",), "set dataset_type=grain, or start MaxText without gristmill"),
        Only(("grain",), "set dataset_type=grain, or start MaxText without gristmill"),
    ),
    Setting(
        ("grain_file_type",),
        Only(("arrayrecord",), "convert the data by gristmill"),
        Only(("arrayrecord",), "convert the data by gristmill"),
    ),
    Setting(("use_sft",), _OWN, "rows of conversations, or refused"),
    Setting(
        ("use_multimodal", "is_offline_distillation"), _OWN, Only((False,), _UNPACKED)
    ),
    Setting(("use_dpo",), Only((False,), _NO_PAIRS), Only((False,), _NO_PAIRS)),
    Setting(
        ("enable_data_shuffling", "data_shuffle_seed", "num_epoch"),
        "the order: shuffled or not, its seed, and how often each record is seen",
        "the order: shuffled or not, its seed, and how often each row is seen",
    ),
    Setting(("{train,eval}_data_columns", "tokenize_{train,eval}_data"), _OWN, _ROWS),
    Setting(
        ("tokenizer_path", "tokenizer_type", "hf_access_token", "chat_template"),
        _OWN,
        _ROWS,
    ),
    Setting(
        ("add_bos", "add_eos"),
        _OWN + "; `false` with `use_sft`, unless they are given",
        _ROWS + "; a difference is logged",
    ),
    Setting(("use_truncation",), _OWN, Only((True,), _UNPACKED)),
    Setting(
        ("packing",),
        _OWN,
        Only((True,), "leave it out: the rows hold several documents"),
    ),
    Setting(("grain_packing_type",), _OWN, Only(("first_fit",), "leave it out")),
    Setting(("max_segments_per_seq",), _OWN, "rows with more pieces are refused"),
    Setting(("max_target_length",), _OWN, "the length of the rows, or refused"),
    Setting(
        (
            *("dpo", "sft_train_on_completion_only", "{train,eval}_image_column"),
            *("image_placeholder", "max_num_images_per_example", "model_name"),
            *("position_id_per_seconds", "spatial_merge_size_for_vit", "use_mrope"),
            *("use_audio_in_video", "use_tunix_gradient_accumulation"),
        ),
        _OWN,
        "of what is refused above",
    ),
    Setting(
        (
            *("global_batch_size_to_load[_eval]", "gradient_accumulation_steps"),
            *(
                "data_sharding",
                "steps",
                "eval_interval",
                "eval_steps",
                "checkpoint_dir",
            ),
        ),
        _SAME,
        _SAME,
    ),
    Setting(
        ("global_batch_size_to_{train,eval}_on",),
        _SAME,
        "that to load, or refused: `per_device_batch_size` below 1 leaves rows out",
    ),
    Setting(("generate_padding_batch_{train,eval}",), _SAME, _SAME),
    Setting(
        ("grain_worker_count[_eval]",), _SAME, "processes if more than 1, else threads"
    ),
    Setting(
        ("grain_per_worker_buffer_size[_eval]",),
        _SAME,
        "batches ahead for each worker",
    ),
    Setting(
        ("grain_num_threads[_eval]", "grain_prefetch_buffer_size[_eval]"),
        _SAME,
        "rows read at a time, in whole batches; rows read ahead, without workers",
    ),
    Setting(
        ("grain_data_source_max_workers",),
        "threads that open the datasets of a mixture",
        "threads that open the datasets of a mixture",
    ),
    Setting(("grain_ram_budget_mb",), _SAME, Only((1024,), _WHOLE)),
    Setting(
        ("grain_index_storage_option",),
        Only((None,), "leave it out: gristmill opens shards by its own indexes"),
        Only((None,), "leave it out: gristmill opens shards by its own indexes"),
    ),
    Setting(("grain_use_elastic_iterator",), _SAME, Only((False,), _ANY_HOSTS)),
    Setting(("expansion_factor_real_data",), _SAME, Only((-1, 1), _ANY_HOSTS)),
    Setting(
        ("elastic_enabled", "colocated_python_data_input"),
        _SAME,
        Only((False,), _UNPACKED),
    ),
    Setting(
        (
            *("grain_shuffle_buffer_size", "blend_cache_dir", "blend_index_dir"),
            *("dataset_name", "dataset_path", "eval_dataset_name", "eod_mask_loss"),
            *("hf_eval_split", "hf_path", "mmap_eod_id", "mmap_npy_split"),
            *("mmap_split_sentences", "reset_attention_mask"),
        ),
        _OTHER_TYPE,
        _OTHER_TYPE,
    ),
)


def check(config: Any, way: Way) -> None:
    """Checks MaxText's settings for a way of reading.

    Raises:
        InputError: One of them asks for what cannot be had; it is named.
    """
    for setting in SETTINGS:
        only = setting.of(way)
        if isinstance(only, str):
            continue
        for name in setting.names:
            # Some are read by `getattr` in MaxText too, and are not in all versions.
            value = getattr(config, name, only.values[0])
            if value not in only.values:
                expected = " or ".join(map(repr, only.values))
                raise refused(config, name, expected, only.cure, way)


def refused(
    config: Any, name: str, expected: str, cure: str, way: Way = "packed"
) -> InputError:
    """Returns the error for a setting that cannot be honoured."""
    value = getattr(config, name)
    return InputError(
        f"{name} of MaxText cannot be honoured with {_SHOWN[way]}",
        expected=f"{name}={expected}",
        got=repr(getattr(value, "value", value)),
        cure=cure,
    )


_SHOWN = {"records": "records of gristmill", "packed": "packed rows"}
