"""Errors: what is wrong, where, expected and got, and what to do about it."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Literal, Self

# How the message of an error calls its attributes.
_LABELS = {"where": "where", "expected": "expected", "got": "got", "cure": "to do"}
_FACT = re.compile(r"  ({}):\s+(.*)".format("|".join(_LABELS.values())))
# An option of the command line, but not one within a command that is quoted whole.
_OPTION = re.compile(
    r"gristmill [a-z-]+[^;,`]*|\btar --\w+|(?<![\w'-])--([a-z][a-z-]*[a-z])(?![\w=-])"
)
# Parameters whose names differ from their options.
_PARAMETERS = {"pack": "method"}


def some_of(items: Iterable[object], shown: int = 3) -> str:
    """Returns the first few of many for a message, and the number of the others.

    >>> some_of("abcde"), some_of("ab")
    ('a, b, c and 2 more', 'a, b')
    """
    texts = [str(item) for item in items]
    more = len(texts) - shown
    return ", ".join(texts[:shown]) + (f" and {more:,} more" if more > 0 else "")


class GristmillError(Exception):
    """Base of every error that gristmill raises on purpose.

    The message has a line for each attribute that is set. Errors pickle, notes and all:
    they travel between processes. The attributes name options of the command line;
    `str` names the parameters of Python instead.

    Attributes:
        what: What is wrong, one sentence without a final full stop.
        where: File, byte offset, record or shard, as far as known.
        expected: What should have been there.
        got: What was there.
        cure: What the reader of the message can do.
    """

    def __init__(
        self,
        what: str,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        cure: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.expected = None if expected is None else str(expected)
        self.got = None if got is None else str(got)
        self.cure = cure
        # Pickle rebuilds the error from `args`; so does Beam, which adds the name of
        # the step to the first. Set here, as OSError would take them for its own.
        self.args = (what, where, self.expected, self.got, cure)

    def add_cure(self, cure: str) -> None:
        """Adds another cure."""
        self.cure = cure if self.cure is None else f"{self.cure}; {cure}"
        self.args = (*self.args[:-1], self.cure)

    @property
    def summary(self) -> str:
        """The `what` and `got` of the error in one line, for another message."""
        return self.what if self.got is None else f"{self.what}: {self.got}"

    def facts(self) -> dict[str, str]:
        """Returns the attributes that are set, by name, for JSON."""
        names = ("what", "where", "expected", "got", "cure")
        values = {name: getattr(self, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def __str__(self) -> str:
        facts = self.facts()
        for name, value in facts.items():
            # `where` and `got` may quote any text.
            if name not in ("where", "got") or value.startswith("--"):
                facts[name] = _OPTION.sub(_parameter, value)
        return self._message(facts)

    def for_commands(self) -> str:
        """Returns the message with options as the command line spells them."""
        return self._message(self.facts())

    @staticmethod
    def _message(facts: dict[str, str]) -> str:
        lines = [facts.pop("what")]
        for name, value in facts.items():
            lines.append(f"  {_LABELS[name] + ':':<9} {value}")
        return "\n".join(lines)

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Returns the error of a message: the inverse of `str(error)`.

        Reads errors that other programs pass on as text. A line without a label belongs
        to the attribute before it.
        """
        names = {label: name for name, label in _LABELS.items()}
        facts: dict[str, str] = {}
        name = "what"
        for line in text.splitlines():
            match = _FACT.fullmatch(line)
            if match is not None and "what" in facts:
                name, line = names[match[1]], match[2]
            facts[name] = f"{facts[name]}\n{line}" if name in facts else line
        return cls(**{"what": "", **facts})


def _parameter(option: re.Match[str]) -> str:
    name = option[1]
    if name is None:
        return option[0]
    return f"`{_PARAMETERS.get(name, name.replace('-', '_'))}`"


class InputError(GristmillError, ValueError):
    """The inputs or options of a job cannot be used as they are."""


OnCorrupt = Literal["fail", "skip"]  # Choices at damaged input.


class CorruptInputError(GristmillError, ValueError):
    """An input file holds bytes that are not what its format says."""


class CorruptRecordError(CorruptInputError):
    """A place in a file that should hold a record, but does not.

    Attributes:
        reason: What kind of damage it is, in a word: `truncated`, or `compressed`
            (the decompression cannot continue), or another of the format's own.
        offset: Where the record begins, or would.
        end: Where it ends, if that can be trusted, else None.
        detail: Expected and got in a few words, for `errors/`.
        line: The line of a file of lines, counted from 1, if known.
    """

    reason: str = ""
    offset: int = 0
    end: int | None = None
    detail: str = ""
    line: int | None = None


class CorruptFrameError(CorruptRecordError):
    """A place in a TFRecord file that should hold a frame, but does not.

    Its `reason` is `length` (header checksum, or a length that cannot be), `data`
    (record checksum), `truncated` or `compressed`.
    """


class CorruptStreamError(CorruptInputError):
    """A compressed stream whose rest cannot be read.

    Attributes:
        detail: What is wrong with it and where, in a few words.
    """

    detail: str = ""


class _InBatchError(GristmillError, ValueError):
    """An error about an item of a batch, which its codec knows only by its place."""

    noun = ""

    def __init__(
        self,
        what: str,
        where: str | None = None,
        expected: object = None,
        got: object = None,
        cure: str | None = None,
        *,
        row: int = 0,
        column: str = "",
    ) -> None:
        where = f"{self.noun} {row:,} of the batch" if where is None else where
        super().__init__(what, where, expected, got, cure)
        self.row, self.column = row, column

    def of(self, where: str | None = None, *, row: int | None = None) -> Self:
        """Returns this error naming the item, such as `c4.parquet, row 7`.

        Args:
            where: The item; by default its place in the batch.
            row: Its place in another batch, where that is to be reported instead.
        """
        facts: dict[str, Any] = {**self.facts(), "where": where}
        row = self.row if row is None else row
        return type(self)(**facts, row=row, column=self.column)


class RowError(_InBatchError, CorruptInputError):
    """A table row that cannot become a record.

    Codecs know a row by its place in the batch alone. A caller that knows more, such as
    the reader of a file, raises `error.of(...)`, or leaves the row out.

    Attributes:
        row: Place of the row in the batch that was given to the codec.
        column: Name of the feature that could not be made, or "" if none is to blame.
    """

    noun = "row"


class FastTokenizerDiffersError(GristmillError, RuntimeError):
    """The fast path gives other tokens than the tokenizer."""


class CorruptShardError(GristmillError, ValueError):
    """A shard, or the index of one, holds bytes that are not what was written."""


class TransposedChunkError(GristmillError, ValueError):
    """A file has transposed chunks, which gristmill does not decode."""


class NotADatasetError(GristmillError, FileNotFoundError):
    """A path holds no committed dataset."""


class FormatVersionError(GristmillError, ValueError):
    """A file was written in a version of the format that this code does not know."""

    @classmethod
    def unknown(cls, what: str, *, where: str, expected: int, got: object) -> Self:
        """Returns the error for a `what` of an unknown version."""
        cure = "convert again, into another directory, or install that version"
        summary = f"another version of gristmill wrote this {what}"
        return cls(summary, where, expected, got, cure)


class InvalidDatasetError(GristmillError, ValueError):
    """The description of a dataset is contradictory, or must not be trusted."""


@contextlib.contextmanager
def parsed(what: str, where: str, cure: str) -> Iterator[None]:
    """Turns the errors of a parser, which may be given anything, into one.

    Raises:
        InvalidDatasetError: It could not parse what it was given.
        FormatVersionError: It knows another version.
    """
    try:
        yield
    except FormatVersionError:
        raise
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as e:
        got = e.summary if isinstance(e, GristmillError) else repr(e)
        raise InvalidDatasetError(what, where, got=got, cure=cure) from e


class ReplacedError(InvalidDatasetError):
    """The edition being read is gone from the dataset: another replaced it."""


class JobChangedError(GristmillError, ValueError):
    """Unfinished output belongs to a job with other inputs or options."""


class DataLossError(GristmillError, RuntimeError):
    """Counts or digests before and after a step differ: nothing was committed."""


_MORE_MEMORY = (
    "allow the process more memory (`ulimit -v`, the limit of its container), or use "
    "smaller batches, fewer workers or a smaller prefetch"
)


class SystemLimitError(GristmillError, MemoryError, RuntimeError):
    """The system refuses memory, a thread or an open file.

    Attributes:
        CURES: What to do about an OSError of a limit, by its error number.
    """

    CURES: ClassVar[dict[int | None, str]] = {
        errno.EMFILE: "allow the process more open files, with `ulimit -n 65536` in "
        "its shell or LimitNOFILE= of its service, or use fewer workers",
        errno.ENFILE: "allow the machine more open files: sysctl fs.file-max",
        errno.ENOMEM: _MORE_MEMORY,
    }

    def __new__(cls, *facts: object, **named: object) -> Self:
        """Creates an error also where `__new__` is called by itself, as by tblib.

        MemoryError's own refuses that.
        """
        del named
        return Exception.__new__(cls, *facts)

    @classmethod
    def of(cls, error: BaseException) -> Self | None:
        """Returns this error for an OSError of a limit, None for all others."""
        if isinstance(error, GristmillError):
            return None
        what, cure = "the system refuses what is needed", None
        if isinstance(error, MemoryError):
            what, cure = "there is not enough memory", _MORE_MEMORY
        # The message of Python, and the error of fork.
        elif "can't start new thread" in str(error) or isinstance(
            error, BlockingIOError
        ):
            what = "the system refuses another thread or process"
            cure = (
                "allow more threads (`ulimit -u`, the container's limit of processes) "
                "or more memory (`ulimit -v`), or use a smaller prefetch"
            )
        elif isinstance(error, OSError):
            cure = cls.CURES.get(error.errno)
        if cure is None:
            return None
        return cls(what, got=str(error) or type(error).__name__, cure=cure)


class UserFunctionError(GristmillError, RuntimeError):
    """A function given by the user failed, or returned a forbidden value."""


class StorageError(GristmillError, OSError):
    """Storage refused to list, read, write or delete."""


class StorageChangedError(StorageError):
    """A file has changed since it was first seen."""


class StorageMissingError(StorageError):
    """The storage reports that a file is missing that should be there."""


# Package -> what to install for it; an extra of gristmill begins with a dot.
_INSTALLED_BY = {
    "apache_beam": ".[beam]",
    "cloudpickle": ".[loader]",
    "dask": "dask[distributed]",
    "gigatoken": ".[gigatoken]",
    "google": ".[gcs]",
    "grain": ".[loader]",
    "jax": ".[loader]",
    "jinja2": ".[tokenizers]",
    "pyarrow": ".[parquet]",
    "requests": ".[gcs]",
    "sentencepiece": ".[tokenizers]",
    "tensorflow": ".[tf]",
    "tensorflow_datasets": ".[tf]",
    "tiktoken": ".[tokenizers]",
    "tokenizers": ".[tokenizers]",
    "urllib3": ".[gcs]",
    "yaml": ".[parquet]",
}


def install_cure(what: str) -> str:
    """Returns the command that installs a package, or an extra such as `.[gcs]`."""
    place = ", in the clone of gristmill" if what.startswith(".") else ""
    return f"pip install '{what}'{place}"


class MissingPackageError(GristmillError, ModuleNotFoundError):
    """An optional package is needed and not installed."""

    @classmethod
    def of(cls, error: ModuleNotFoundError) -> Self | None:
        """Returns this error for a failed import of an optional package, else None."""
        package = (error.name or "").partition(".")[0]
        if package not in _INSTALLED_BY:
            return None
        return cls(
            f"the package {package} is not installed",
            cure=install_cure(_INSTALLED_BY[package]),
        )


class WorkerDiedError(GristmillError, RuntimeError):
    """A worker process ended without a result."""


class JobError(GristmillError, RuntimeError):
    """A job on a remote engine could not be submitted, or has failed."""


class OutOfRangeError(GristmillError, IndexError):
    """An index, a position or a step is out of range."""


class RecordKeyError(OutOfRangeError, ValueError):
    """There is no such record: an IndexError, and the ValueError of Grain's source."""


class StateMismatchError(GristmillError, ValueError):
    """A state does not match the records or the order of the feed that gets it."""


class DecodeError(_InBatchError):
    """A record of a batch that is not what the decoder was told to expect.

    Decoders know a record by its place in the batch alone. A caller that knows more,
    such as a feed, raises `error.of(...)`.

    Attributes:
        row: Place of the record in the batch that was given to the decoder.
    """

    noun = "record"
