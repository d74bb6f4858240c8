"""The files that an input pattern matches; a directory stands for its files."""

from __future__ import annotations

from collections.abc import Collection

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import not_a_dataset
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

# Files of the package datasets, and those that describe a repository of the Hub.
_HUGGING_FACE_DATA = (".arrow", ".parquet")
_OF_HUB = ({"dataset_infos.json"}, {"README.md", ".gitattributes"})
_NO_DATA = (".json", ".md")


def match_inputs(pattern: str) -> list[FileInfo]:
    """Lists the files that a pattern matches, or that are directly in a directory.

    In a directory, names that begin with `.` or `_` are left out, as in Hadoop and
    Spark: these are markers and unfinished files.

    Raises:
        InputError: There are no files, or the directory is a dataset with splits.
        NotADatasetError: The directory is a dataset that was not committed.
    """
    storage = storage_for(pattern)
    matches = [] if pattern.endswith("/") else storage.match(pattern)
    if matches:
        return matches
    there = storage.list(pattern.rstrip("/") or "/")
    names = [layout.base_name(info.path) for info in there]
    check_no_dataset(pattern, names)
    _check_finished(pattern, names)
    found = [
        info
        for info, name in zip(there, names, strict=True)
        if not name.startswith((".", "_"))
    ]
    if not found:
        raise InputError(
            "no input file matches",
            where=pattern,
            got=f"only files whose names begin with . or _, such as {names[0]}"
            if there
            else None,
            cure="give these files by a pattern"
            if there
            else "check the path; a directory stands for the files directly in it, and "
            "patterns match files; quote a pattern with * so that it reaches gristmill "
            "as it is",
        )
    return found


def _check_finished(directory: str, names: Collection[str]) -> None:
    """Raises NotADatasetError if a directory is a dataset that was not committed.

    Some of its shards may exist, as readable files.
    """
    index = layout.join(directory, layout.INDEX_DIR)
    if any(".array_record" in name for name in names) and storage_for(index).list(
        index
    ):
        raise not_a_dataset(directory.rstrip("/") or "/")


def check_no_dataset(directory: str, names: Collection[str]) -> None:
    """Raises InputError if a directory is a dataset whose splits would be joined.

    Args:
        directory: The directory.
        names: The files in it.
    """
    if layout.DATASET_JSON in names:
        raise InputError(
            "a dataset is not the only input",
            where=directory,
            expected="one dataset, whose splits are kept, or files",
            got=f"a directory with {layout.DATASET_JSON} among other inputs",
            cure="convert it alone, with `gristmill convert`; or give the shards of "
            "one of its splits by a pattern",
        )
    check_not_hugging_face(directory, names)
    if layout.TFDS_INFO_JSON in names:
        raise InputError(
            "a TFDS directory is not the only input",
            where=directory,
            expected="one TFDS directory, whose splits are kept, or files",
            got=f"a directory with {layout.TFDS_INFO_JSON} among other inputs",
            cure="convert it alone, with `gristmill convert`; or give the files of one "
            "of its splits by a pattern",
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
