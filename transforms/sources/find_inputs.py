"""The input files of a job: found by patterns, sorted, and recognised."""

from __future__ import annotations

import dataclasses
import itertools
import os
import pickle
import re
import shlex
import zlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.errors import DataLossError, InputError, some_of
from gristmill.dataset.formats.streams import COMPRESSIONS
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import files_of_index, not_a_dataset
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import (
    compile_pattern,
    has_magic,
    near_paths,
    path_texts,
)
from gristmill.transforms.sources.formats import FORMATS, RecordOptions, check_options
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.input_formats import (
    Look,
    check_formats,
    choose_format,
    look_at,
)
from gristmill.transforms.sources.source import source_type

# Files of the package datasets, and those that describe a repository of the Hub.
_HUGGING_FACE_DATA = (".arrow", ".parquet")
_OF_HUB = ({"dataset_infos.json"}, {"README.md", ".gitattributes"})
_NO_DATA = (".json", ".md")


_DOCUMENT = re.compile(
    r"(?:readme|licen[cs]e|notice|citation)(?:\.\w+)?", re.IGNORECASE
)
# Tables: the folder of their log, how its files end, and what reads them.
_TABLES = (
    (
        *("Delta Lake", "_delta_log", ".json"),
        "write it anew as Parquet, as with deltalake: "
        "DeltaTable(PATH).to_pyarrow_table()",
    ),
    (
        *("Iceberg", "metadata", ".metadata.json"),
        "write it anew as Parquet, as with pyiceberg: table.scan().to_arrow()",
    ),
    ("Hudi", ".hoodie", "hoodie.properties", "write it anew as Parquet with Spark"),
)


def match_inputs(pattern: str) -> list[FileInfo]:
    """Lists the files that a pattern matches, or that are directly in a directory.

    In a directory, names that begin with `.` or `_` are left out, as in Hadoop and
    Spark: these are markers and unfinished files. So is a README or a license, unless
    there is nothing else.

    Raises:
        InputError: There are no files, or the directory is a dataset with splits.
        NotADatasetError: The directory is a dataset that was not committed.
    """
    storage = storage_for(pattern)
    matches = [] if pattern.endswith("/") else storage.match(pattern)
    if matches:
        return matches
    directory = pattern.rstrip("/") or "/"
    there = storage.list(directory)
    names = [*map(_base, there)]
    check_no_dataset(pattern, names)
    check_no_table(directory)
    found = [info for info in there if not _base(info).startswith((".", "_"))]
    found = [info for info in found if not is_document(info.path)] or found
    # Some shards of a dataset that was not committed may exist, as readable files.
    may_be = not found or any(".array_record" in name for name in names)
    if may_be and files_of_index(directory):
        raise not_a_dataset(directory)
    if not found and there:
        raise InputError(
            "no input file matches",
            where=pattern,
            got=f"only files whose names begin with . or _, such as {names[0]}",
            cure="give these files by a pattern",
        )
    if not found:
        raise _no_match(pattern)
    return found


def _no_match(pattern: str) -> InputError:
    got, cure = "nothing there", "a directory stands for the files directly in it"
    if os.path.isdir(pattern):
        names = sorted(os.listdir(pattern))
        odd = [n for n in names if not os.path.isdir(os.path.join(pattern, n))]
        what = "broken links or special files" if odd else "directories alone"
        got = f"{what}: {some_of(odd or names)}" if names else "no file at all"
    elif near := near_paths(pattern):
        cure = f"there is {some_of(near)}"
    elif has_magic(pattern):
        cure = "patterns match files, and need quotes so that they reach gristmill as "
        cure += "they are"
    cure = f"check the path; {cure}"
    return InputError("no input file matches", where=pattern, got=got, cure=cure)


def _base(info: FileInfo) -> str:
    return layout.base_name(info.path)


def check_no_dataset(directory: str, names: Collection[str]) -> None:
    """Raises InputError if a directory is a dataset whose splits would be joined."""
    check_not_hugging_face(directory, names)
    for name, kind in (
        (layout.DATASET_JSON, "dataset"),
        (layout.TFDS_INFO_JSON, "TFDS directory"),
    ):
        if name in names:
            raise InputError(
                f"a {kind} is not the only input",
                where=directory,
                expected=f"one {kind}, whose splits are kept, or files",
                got=f"a directory with {name} among other inputs",
                cure="convert it alone, with `gristmill convert`; or give the files of "
                "one of its splits by a pattern",
            )


def is_document(path: str) -> bool:
    """Returns whether a file describes the others of a directory, by its name.

    >>> is_document("data/LICENSE.txt"), is_document("data/readme_all.txt")
    (True, False)
    """
    return _DOCUMENT.fullmatch(layout.base_name(path)) is not None


def check_no_table(directory: str) -> None:
    """Raises InputError if a directory is a table whose log says which files are in it.

    Sources: the protocol of Delta Lake, the specification of Iceberg's file system
    tables, and the layout of Hudi.
    """
    storage = storage_for(directory)
    for kind, folder, end, cure in _TABLES:
        path = layout.join(directory, folder)
        found = [one.path for one in storage.list(path) if one.path.endswith(end)]
        if found:
            raise InputError(
                f"the input is a table of {kind}",
                where=directory,
                expected="files that all belong to the data",
                got=f"a log, {found[0]}, which may have removed some of them",
                cure=f"{cure}, and convert these files",
            )


def check_not_hugging_face(directory: str, names: Collection[str]) -> None:
    """Raises InputError if a directory with these `names` is of Hugging Face."""
    if (found := _hugging_face(names)) is not None:
        raise InputError(
            "the input is a Hugging Face dataset, which cannot be converted directly",
            where=directory,
            expected="files, or one repository with Parquet files",
            got=found,
            cure="give the directory alone to `gristmill convert` if its data is "
            "Parquet. If not, write each split as Parquet with the package datasets, "
            "as in load_from_disk(PATH)[SPLIT].to_parquet(FILE), and convert these "
            "files",
        )


def _hugging_face(names: Collection[str]) -> str | None:
    """Returns the kind of Hugging Face directory with these files, or None."""
    described = layout.TFDS_INFO_JSON in names and "features.json" not in names
    if "dataset_dict.json" in names or (
        described and any(name.endswith(_HUGGING_FACE_DATA) for name in names)
    ):
        return "what the package datasets writes"
    data = [n for n in names if not n.startswith(".") and not n.endswith(_NO_DATA)]
    if not data and any(kind.issubset(names) for kind in _OF_HUB):
        return "a repository of the Hub, its data in other directories"
    return None


_PART_FILES = 1000

# Files, and the look at the first bytes of each.
Looked = tuple[Sequence[FileInfo], Sequence[Look]]


class LookTask(NamedTuple):
    """Some of the files that the inputs of a split match.

    Attributes:
        split: The split.
        number: Number of the part, among those of all files in order.
        parts: Number of parts.
        files: The files, as plain tuples: elements of pipelines should be small.
    """

    split: str
    number: int
    parts: int
    files: tuple[tuple[Any, ...], ...]


class LookedPart(NamedTuple):
    """Such files with the look into each, packed; see `LookTask`."""

    split: str
    number: int
    parts: int
    packed: bytes

    def gather(self, gathered: Gathered) -> None:
        """Adds the part to those of its split."""
        gathered.notes["looked"][self.split, self.number] = self

    @property
    def done(self) -> Done:
        """That files were looked into."""
        said = f"part {self.number + 1} of {self.parts} of the inputs looked into"
        return Done(f"split {self.split}", said)


def look_tasks(
    split: str, files: Sequence[FileInfo], *, part_files: int = _PART_FILES
) -> Iterator[LookTask]:
    """Yields files in parts; one part without any if there are none."""
    parts = max(1, -(-len(files) // part_files))
    for number in range(parts):
        some = files[number * part_files : (number + 1) * part_files]
        yield LookTask(split, number, parts, tuple(map(tuple, some)))


def look_at_part(task: LookTask) -> LookedPart:
    """Looks into the files of a part."""
    looks = look_at([FileInfo(*file) for file in task.files])
    packed = zlib.compress(pickle.dumps((task.files, looks)), 1)
    return LookedPart(*task[:3], packed)


def looked_files(gathered: Gathered, split: str) -> Looked:
    """Returns all files of a split, and the look into each.

    Raises:
        DataLossError: A part is missing.
    """
    parts = (part for part in gathered.notes["looked"].values() if part.split == split)
    found = sorted(parts, key=lambda part: part.number)
    if not found or len(found) != found[0].parts:
        raise DataLossError(
            "not all parts of the listing of the inputs came back",
            where=f"split {split}",
            expected=f"{found[0].parts:,} parts" if found else "one part at least",
            got=f"{len(found):,}",
            cure="run the same command again; if it repeats, please report it",
        )
    files: list[FileInfo] = []
    looks: list[Look] = []
    for part in found:
        some, seen = pickle.loads(zlib.decompress(part.packed))
        files += itertools.starmap(FileInfo, some)
        looks += seen
    return files, looks


def find_inputs(
    patterns: Sequence[str],
    *,
    options: RecordOptions | None = None,
    adapt: Callable[[RecordOptions], RecordOptions] | None = None,
    allow_empty_files: bool = False,
    allow_other_formats: bool = False,
    looked: Looked | None = None,
) -> InputFiles:
    """Lists the files that patterns match, sorted, and detects their format.

    A file that several patterns match is taken once.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        options: The user's options for the records, if any.
        adapt: Takes these options with the format of the files, and returns the options
            to use.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.
        allow_other_formats: Whether some files may be of other formats.
        looked: The result of `match_files`, with the looks at first bytes, if known.

    Raises:
        InputError: A pattern matches nothing, or a file is empty or of another format,
            or the options do not fit the format.
        MissingPackageError: A package is missing that reads the format.
    """
    options = RecordOptions() if options is None else options
    if looked is None:
        found = match_files(patterns, allow_empty_files=allow_empty_files)
        looked = found, look_at(found)
    files, looks = looked
    auto = options.input_format == "auto"
    # An empty file has any format.
    pairs = zip(files, looks, strict=True)
    filled = [look for file, look in pairs if file.size_bytes and not look.is_blank]
    if auto and not filled and not (allow_empty_files or allow_other_formats):
        raise _empty([info.path for info in files], "blanks alone")
    chosen = choose_format(filled, options.input_format)
    compressions = check_formats(
        files, looks, chosen, allow_some=allow_other_formats, auto=auto
    )
    listed = InputFiles(
        paths=tuple(info.path for info in files),
        sizes=np.array([info.size_bytes for info in files], np.int64),
        versions=tuple(info.version for info in files),
        compressions=np.array(list(map(COMPRESSIONS.index, compressions)), np.uint8),
        noted_ns=np.array([look.noted_ns for look in looks], np.int64),
        whole=options.whole_files,
    )
    options = dataclasses.replace(options, input_format=chosen)
    options = options if adapt is None else adapt(options)
    check_options(options, chosen)
    record = options.record or "".join(FORMATS[chosen].records[:1])
    options = dataclasses.replace(options, record=record)
    spec = source_type(chosen).find_spec(listed, options)
    return dataclasses.replace(listed, spec=spec)


def match_files(
    patterns: Sequence[str], *, allow_empty_files: bool = False
) -> list[FileInfo]:
    """Lists the files that patterns match, sorted, without opening them.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.

    Raises:
        InputError: A pattern matches nothing, or a file is empty.
    """
    found: dict[str, FileInfo] = {}
    texts = path_texts(patterns, "input")
    for pattern in texts:
        found.update((info.path, info) for info in match_inputs(pattern))
    files = [found[path] for path in sorted(found)]
    check_sets(texts, [info.path for info in files])
    empty = [info.path for info in files if not info.size_bytes]
    if empty and not allow_empty_files:
        raise _empty(empty, "0 bytes, as after an interrupted copy")
    return files


_MOST_OF_SET = 1 << 17
# NAME-00000-of-00010, also with a hash as Hugging Face writes it, and an ending.
_OF_SET = re.compile(r"(.*?)(\d{5,})-of-(\d{5,})(?:-[0-9a-f]{8,})?((?:\.[^/]*)?)")


def check_sets(patterns: Sequence[str], paths: Sequence[str]) -> None:
    """Checks that sets of files, named NUMBER-of-COUNT, are whole.

    A file is missing if a directory or a pattern stands for it. Who names some files of
    a set takes these.

    Raises:
        InputError: Files of a set are missing, or a directory has several sets.
    """
    named = {*paths}
    stand_for = [one for one in patterns if one not in named]
    if not stand_for:
        return
    sets: defaultdict[tuple[str, int, str], defaultdict[int, set[int]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for path in paths:
        if match := _OF_SET.fullmatch(path):
            name = (match[1], len(match[2]), match[4])
            sets[name][int(match[3])].add(int(match[2]))
    stands = [_stands(pattern) for pattern in stand_for]
    for (begin, width, end), counts in sets.items():
        if len(counts) > 1:
            raise InputError(
                "files of several sets are in one place",
                where=f"{begin}*{end}",
                expected="files of one set",
                got=some_of(f"{len(n):,} of {count:,}" for count, n in counts.items()),
                cure="give a pattern of one set, such as "
                f"{shlex.quote(f'{begin}*-of-{max(counts):0{width}}*{end}')}",
            )
        ((count, numbers),) = counts.items()
        # A name may claim any count: some that are missing tell as much as all.
        missing = (n for n in range(min(count, _MOST_OF_SET)) if n not in numbers)
        names = (f"{begin}{n:0{width}}-of-{count:0{width}}{end}" for n in missing)
        stood_for = (name for name in names if any(stand(name) for stand in stands))
        lost = [*itertools.islice(stood_for, 100)]
        if lost:
            raise InputError(
                "files of a set are missing",
                where=some_of(lost),
                expected=f"{count:,} files",
                got=f"{len(numbers):,}",
                cure="copy those that are missing; to take those that are there, give "
                "them by a pattern that does not match the others, or by their names",
            )


def _stands(pattern: str) -> Callable[[str], object]:
    """Returns the test whether a pattern, or a directory's own files, has a path."""
    if has_magic(pattern):
        return compile_pattern(pattern).fullmatch
    folder = pattern.rstrip("/")
    return lambda path: path.rpartition("/")[0] == folder


def _empty(paths: Sequence[str], got: str) -> InputError:
    return InputError(
        f"{len(paths):,} input file{'s are' if len(paths) > 1 else ' is'} empty",
        where=some_of(paths),
        expected="at least one record in each file",
        got=got,
        cure="copy them again, or leave them out: a directory as input leaves out "
        "markers such as _SUCCESS; to accept empty files, give --on-corrupt skip, or "
        "allow_empty_files=True to a transform that reads",
    )


def look_into(info: FileInfo) -> InputFile:
    """Recognises one TFRecord file by its first bytes.

    Raises:
        InputError: It has another format.
    """
    (look,) = look_at([info])
    (compression,) = check_formats([info], [look], "tfrecord")
    return InputFile(
        info.path, info.size_bytes, info.version, compression, look.noted_ns
    )
