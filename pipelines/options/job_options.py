"""The values of the options of jobs, which Beam and Dataflow get too."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from gristmill.dataset.arrayrecord.writer_options import (
    DEFAULT_COMPRESSION,
    DEFAULT_GROUP_SIZE,
)
from gristmill.dataset.base.errors import InputError, OnCorrupt
from gristmill.dataset.metadata import layout
from gristmill.transforms.jobs.pack_options import (
    ChatOptions,
    Method,
    Rows,
    SpecialText,
    YesNo,
)
from gristmill.transforms.sources.formats import Nulls


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Options of `gristmill convert`, whose help says what each does."""

    command: ClassVar[str] = "convert"
    input: tuple[str, ...]
    output: str
    input_format: str = "auto"
    columns: str | None = None
    record: str | None = None
    nulls: Nulls = "fail"
    select: str | None = None
    map: str | None = None
    name: str | None = None
    split: str | None = None
    match_shards: bool = False
    num_shards: int | None = None
    shard_size: str | None = None
    group_size: int | None = DEFAULT_GROUP_SIZE
    compression: str | None = DEFAULT_COMPRESSION
    on_corrupt: OnCorrupt = "fail"
    max_corrupt: int = 100
    whole_files: bool = False
    overwrite: bool = False
    keep_replaced: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AppendOptions(ConvertOptions):
    """Options of `gristmill append`, without those that the dataset determines."""

    command: ClassVar[str] = "append"
    group_size: int | None = None
    compression: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackingOptions(ConvertOptions):
    """Options of `gristmill pack`: those of a conversion and of rows."""

    command: ClassVar[str] = "pack"
    tokenizer: str | None = None
    column: str = "text"
    vocabulary_size: int | None = None
    length: int = 2048
    pack: Method = "best-fit"
    truncate: bool = False
    bos: str | None = None
    eos: str | None = None
    add_special_tokens: bool = False
    fast: bool = False
    special_text: SpecialText = "text"
    accept: str | None = None
    rows: Rows = "packed"
    chat: bool = False
    template: str | None = None
    train: str = "assistant"
    train_without: str | None = None
    train_end_of_turn: YesNo = "yes"
    truncate_turns: YesNo = "yes"
    max_rejected: float = 1.0
    tools_column: str = "tools"
    weight_column: str = "weight"
    date: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """Options of `gristmill verify`."""

    command: ClassVar[str] = "verify"
    dataset: str
    quick: bool = False
    report: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """Options of `gristmill index`."""

    command: ClassVar[str] = "index"
    files: tuple[str, ...]
    name: str | None = None
    split: str | None = None
    overwrite: bool = False
    keep_replaced: bool = False


Options = ConvertOptions | VerifyOptions | IndexOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """Options of where a job runs, besides the runner's own, which are Beam's."""

    runner: str | None = None
    wait: bool = False
    cross_region: bool = False
    install_on_workers: bool = False

    @property
    def on_dataflow(self) -> bool:
        """Whether the runner submits jobs to Dataflow."""
        name = (self.runner or "").rpartition(".")[2].lower()
        return name.removeprefix("test") in ("dataflow", "dataflowrunner")


_OF_CHAT = (
    *("template", "train", "train_without", "train_end_of_turn", "truncate_turns"),
    *("max_rejected", "tools_column", "weight_column", "date"),
)


def chat_of(options: PackingOptions) -> ChatOptions | None:
    """Returns the options of conversations; None without --chat.

    Raises:
        InputError: The options contradict each other.
    """
    given: dict[str, Any] = {name: getattr(options, name) for name in _OF_CHAT}
    for name, value in given.items():
        flag = flag_of(name)
        if not options.chat and value != getattr(PackingOptions, name):
            raise InputError(
                f"{flag} has no effect without --chat",
                expected="--chat, for records that are conversations",
                cure="add --chat, or leave it out",
            )
        if value == "":
            raise InputError(f"{flag} is empty", cure="give a value, or leave it out")
    if not options.chat:
        return None
    if options.template is None:
        raise InputError(
            "--chat without a template",
            cure="give --template, such as the model's tokenizer_config.json",
        )
    for name in ("train_without", "date"):
        given[name] = given[name] or ""
    return ChatOptions(**given)


def flag_of(name: str) -> str:
    """Returns an option as the command line spells it."""
    return "--" + name.replace("_", "-")


def command_of(options: ConvertOptions, *, workers: int | None = None) -> str:
    """Returns the command of a conversion, for a shell.

    Args:
        options: The conversion.
        workers: Processes on this machine; None for the default.
    """
    words = ["gristmill", "convert", *options.input, options.output]
    always = ("compression", "group_size")
    for field in dataclasses.fields(ConvertOptions):
        value = getattr(options, field.name)
        if field.default is not dataclasses.MISSING and (
            value != field.default or field.name in always
        ):
            words += [flag_of(field.name), *([] if value is True else [str(value)])]
    words += [] if workers is None else ["--workers", str(workers)]
    return shlex.join(words)


def default_output(inputs: Sequence[str]) -> str:
    """Returns a directory for the output of inputs, in the same bucket or here.

    Its name is that of the directory of the inputs.

    >>> default_output(["gs://raw/c4/*.tfrecord"])
    'gs://raw/c4-arrayrecord'
    >>> default_output(["/data/pile/train"]), default_output(["a.csv", "b.csv"])
    ('train-arrayrecord', 'a-arrayrecord')
    """
    remote = inputs[0].startswith("gs://")
    rest = inputs[0].removeprefix("gs://")
    parts = [part for part in rest.split("/") if part] or ["dataset"]
    # A pattern, or the name of a file.
    while len(parts) > 1 and re.search(r"[*?\[]|\.[A-Za-z]", parts[-1]):
        parts.pop()
    stem = re.split(r"[*?\[]|\.[A-Za-z]", parts[-1])[0]
    if stem in ("", ".", "..") and not remote:
        stem = layout.base_name(stem or ".")
    words = filter(None, re.split(r"[^A-Za-z0-9_]+", stem))
    name = "-".join([*words] or ["dataset"]) + "-arrayrecord"
    if not remote:
        return name
    return "/".join(["gs:/", *(parts[:-1] or parts), name])


def usual_split(splits: Iterable[str]) -> str:
    """Returns the split to begin with: train, or the first one."""
    return min(splits, key=lambda name: (name != "train", name), default="train")
