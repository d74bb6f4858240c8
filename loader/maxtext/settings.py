"""The settings of MaxText that its Grain pipeline reads.

None is ignored: each is honoured, or refused by name if its value cannot be.
`docs/train/maxtext.md` has the table of all.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple, Self, TypeAlias, get_args

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.paths import has_magic


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


class Source(NamedTuple):
    """A dataset or files that MaxText's settings name.

    Attributes:
        name: Its name in a mixture; "" of a single dataset.
        path: The path, as it was given.
        weight: Its share in a mixture, as it was given.
        dataset: The opened dataset.
    """

    name: str
    path: str
    weight: str | float
    dataset: loader.Dataset


Sources: TypeAlias = tuple[Source, ...]


def are_packed(sources: Sources) -> bool:
    """Returns whether datasets hold packed rows.

    Raises:
        InputError: Some do, and others do not.
    """
    others = [part.path for part in sources if not part.dataset.stored.is_packed]
    if others and len(others) < len(sources):
        raise InputError(
            "a mixture of packed rows and other records",
            where=others[0],
            expected="packed rows, as in the other datasets",
            cure="pack it by `gristmill pack`, or leave it out of the mixture",
        )
    return not others


def batches_of(
    sources: Sources, side: Side, options: Options, *, rows: int
) -> loader.GlobalBatches:
    """Returns their global batches of so many rows."""
    mixed = bool(sources[0].name)
    return loader.global_batches(
        {part.name: part.dataset for part in sources} if mixed else sources[0].dataset,
        batch_size=rows,
        seed=side.seed,
        shuffle=options.shuffle if side.shuffled else "none",
        epochs=side.epochs,
        drop_remainder=False,
        weights={part.name: part.weight for part in sources} if mixed else None,
    )


def open_sources(side: Side, options: Options) -> Sources:
    """Opens the data of a side: a single dataset, or those of a mixture.

    Raises:
        InputError: A mixture is not written as MaxText has it, a split is missing, or
            files of packed rows are named instead of their dataset.
        GristmillError: As `loader.open`.
    """
    given = _named(side)
    with ThreadPoolExecutor(max(1, min(side.openers, len(given)))) as threads:
        open_one = functools.partial(_open, side=side, options=options)
        datasets = list(threads.map(open_one, [path for _, path, _ in given]))
    found: dict[str, Source] = {}
    for (name, path, weight), dataset in zip(given, datasets, strict=True):
        if not name and len(given) > 1:
            # The name of its files; numbered if another source has the same.
            file = posixpath.basename(dataset.shard(0).path)
            name = first = file.partition(".array_record")[0]
            numbers = itertools.count(2)
            while name in found:
                name = f"{first}-{next(numbers)}"
        found[name] = Source(name, path, weight, dataset)
    return tuple(found.values())


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern of files, or a single file."""
    return has_magic(path) or ".array_record" in posixpath.basename(path)


def _named(side: Side) -> list[tuple[str, str, str | float]]:
    """Returns names, which may be empty, paths and weights."""
    if side.mixture:
        with open(os.path.expanduser(side.mixture), encoding="utf-8") as file:
            return _of_json(file.read(), side.mixture)
    setting = f"grain_{side.name}_files"
    if not side.files:
        raise InputError(
            f"{setting} is empty", cure="give it the directory of a dataset"
        )
    if ";" not in side.files:
        return [("", side.files, 1)]
    found: list[tuple[str, str, str | float]] = []
    for part in side.files.split(";"):
        path, _, weight = part.rpartition(",")
        if not path:
            raise InputError(
                "a dataset of a mixture has no weight",
                where=setting,
                expected="PATH,WEIGHT;PATH,WEIGHT",
                got=part,
                cure="put a weight after each path",
            )
        found.append(("", path.strip(), weight.strip()))
    return found


def _of_json(text: str, where: str) -> list[tuple[str, str, str | float]]:
    try:
        given = json.loads(text)
    except ValueError:
        given = text
    named = isinstance(given, Mapping) and given
    entries = given.items() if named else [("", given)]
    found = []
    for name, entry in entries:
        if not isinstance(entry, Mapping) or not {"path", "weight"} <= entry.keys():
            raise InputError(
                "not a mixture as MaxText has it",
                where=where,
                expected='{"NAME": {"path": "...", "weight": 0.7}, ...}',
                got=f"{given!r:.200}",
                cure="correct the file",
            )
        found.append((str(name), str(entry["path"]), entry["weight"]))
    return found


def _open(path: str, side: Side, options: Options) -> loader.Dataset:
    plain = is_pattern(path)
    path = path if "://" in path else os.path.expanduser(path)
    if plain:
        _check_not_packed(path)
    try:
        return loader.open(
            path,
            split=None if plain else side.split,
            cache_dir=options.cache,
            cache_bytes=options.cache_bytes,
        )
    except InputError as e:
        if e.what != "no such split":
            raise
        cure = f"give one of these as {side.name}_split"
        raise InputError(**e.facts() | {"cure": cure}) from e


def _check_not_packed(pattern: str) -> None:
    """Raises InputError for files of packed rows, which do not say so."""
    directory = posixpath.dirname(pattern)
    manifest = None if is_pattern(directory) else read_manifest(directory)
    if manifest and any(split.packed for split in manifest.splits.values()):
        raise InputError(
            "files of packed rows are given by a pattern",
            where=pattern,
            expected="the dataset's directory, which says how rows are stored",
            cure=f"give {directory}",
        )
