"""The settings of MaxText that its Grain pipeline reads.

None is ignored: each is honoured, or refused by name if its value cannot be.
`docs/train/maxtext.md` has the table of all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeAlias, get_args

from gristmill.dataset.base.errors import InputError


class Side:
    """One of MaxText's two data iterators, in the words of the loader.

    Args:
        config: MaxText's settings.
        name: "train" or "eval".

    Attributes:
        name: The same.
        files: The setting that names the data: a directory, a pattern, or a mixture.
        mixture: Path of a JSON file with a mixture; "" without one.
        split: The split of a dataset's directory.
        shuffled: Whether records are shuffled.
        seed: The seed of the shuffle.
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

    def __init__(self, config: Any, name: str):
        train = name == "train"
        end, rows_end = ("", "train_on") if train else ("_eval", "eval_on")
        self.name = name
        self.files: str = getattr(config, f"grain_{name}_files")
        self.mixture: str = config.grain_train_mixture_config_path if train else ""
        self.split: str = getattr(config, f"{name}_split")
        # As in MaxText: evaluation is one pass in the order of the records.
        self.shuffled = bool(config.enable_data_shuffling) and train
        self.seed: int = config.data_shuffle_seed
        self.epochs: int = config.num_epoch if train else 1
        self.rows: int = getattr(config, f"global_batch_size_to_load{end}")
        self.trained: int = getattr(config, f"global_batch_size_to_{rows_end}")
        self.workers: int = getattr(config, f"grain_worker_count{end}")
        self.worker_batches: int = getattr(config, f"grain_per_worker_buffer_size{end}")
        self.threads: int = getattr(config, f"grain_num_threads{end}")
        self.ahead: int = getattr(config, f"grain_prefetch_buffer_size{end}")
        self.openers: int = config.grain_data_source_max_workers
        self.padded: bool = getattr(config, f"generate_padding_batch_{name}")

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
class Limit:
    """Settings of which some values cannot be honoured.

    Attributes:
        names: Settings of MaxText.
        values: The accepted values, which ask for nothing, or for what is done anyway.
        cure: What to do about a value that is refused.
        packed: Whether the limit is only for packed rows.
    """

    names: tuple[str, ...]
    values: tuple[object, ...]
    cure: str
    packed: bool = True


_UNPACKED = "give it records that are not packed"
_ANY_HOSTS = "leave it out: packed rows resume on any number of hosts"

LIMITS = (
    Limit(
        ("dataset_type",),
        ("grain",),
        "set dataset_type=grain, or start MaxText without gristmill",
        packed=False,
    ),
    Limit(
        ("grain_file_type",),
        ("arrayrecord",),
        "convert the data by gristmill",
        packed=False,
    ),
    Limit(
        ("use_dpo",),
        (False,),
        "leave it out: pairs of answers are read by Tunix without MaxText",
        packed=False,
    ),
    Limit(
        ("grain_index_storage_option",),
        (None,),
        "leave it out: gristmill opens shards by its own indexes",
        packed=False,
    ),
    Limit(
        (
            *("use_multimodal", "is_offline_distillation"),
            *("elastic_enabled", "colocated_python_data_input"),
        ),
        (False,),
        _UNPACKED,
    ),
    Limit(("use_truncation",), (True,), _UNPACKED),
    Limit(("packing",), (True,), "leave it out: the rows hold several documents"),
    Limit(("grain_packing_type",), ("first_fit",), "leave it out"),
    Limit(
        ("grain_ram_budget_mb",),
        (1024,),
        "leave it out: packed rows are read in whole batches",
    ),
    Limit(("grain_use_elastic_iterator",), (False,), _ANY_HOSTS),
    Limit(("expansion_factor_real_data",), (-1, 1), _ANY_HOSTS),
)


def check(config: Any, way: Way) -> None:
    """Checks MaxText's settings for a way of reading.

    Raises:
        InputError: One of them cannot be honoured; it is named.
    """
    for limit in LIMITS:
        for name in () if limit.packed and way == "records" else limit.names:
            # Some are read by `getattr` in MaxText too, and are not in all versions.
            value = getattr(config, name, limit.values[0])
            if value not in limit.values:
                expected = " or ".join(map(repr, limit.values))
                raise refused(config, name, expected, limit.cure, way)


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


Shuffled = Literal["global", "block"]
SftEnds = Literal["template", "settings"]

PREFIX = "gristmill_"


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of `install`, and of the command line with `gristmill_` before them.

    Attributes:
        shuffle: Which shuffle `enable_data_shuffling` asks for.
        cache: Local directory for copies of what is in object storage; by default that
            of `loader.open`.
        cache_bytes: Bytes of all copies of shards in it; none by default.
        sft_ends: What puts tokens around the texts of `use_sft`: the template alone, or
            `add_bos` and `add_eos` as they are set.
    """

    shuffle: Shuffled = "global"
    cache: str | None = None
    cache_bytes: int | None = None
    sft_ends: SftEnds = "template"

    def __post_init__(self) -> None:
        for name, known in (("shuffle", Shuffled), ("sft_ends", SftEnds)):
            if (value := getattr(self, name)) not in get_args(known):
                raise InputError(
                    f"no such {name} for MaxText's data",
                    where=f"{PREFIX}{name}, or {name} of install()",
                    expected=" or ".join(get_args(known)),
                    got=repr(value),
                    cure="give one of these, or leave it out",
                )

    @classmethod
    def taken_from(cls, arguments: Sequence[str]) -> tuple[Self, list[str]]:
        """Returns the options among arguments, and the other arguments.

        Raises:
            InputError: There is no such option, or it has no such value.
        """
        kinds = {field.name: str(field.type) for field in dataclasses.fields(cls)}
        given: dict[str, Any] = {}
        others = []
        for argument in arguments:
            if not argument.startswith(PREFIX):
                others.append(argument)
                continue
            name, _, text = argument.removeprefix(PREFIX).partition("=")
            whole = "int" in kinds.get(name, "")
            if name not in kinds or not text or (whole and not text.isdecimal()):
                raise InputError(
                    f"there is no argument {argument!r}",
                    expected=f"{PREFIX}{name}=BYTES, a whole number"
                    if whole
                    else ", ".join(f"{PREFIX}{known}=..." for known in kinds),
                    cure="correct it, or leave it out",
                )
            given[name] = int(text) if whole else text
        if any(other.startswith(("add_bos=", "add_eos=")) for other in others):
            given.setdefault("sft_ends", "settings")
        return cls(**given), others
