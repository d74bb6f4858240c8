"""Shards of MosaicML Streaming (MDS) with a column of integers.

Source: `streaming/base/format/mds` of MosaicML Streaming.
"""

from __future__ import annotations

import functools
import json
import posixpath
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.token_files.token_documents import (
    Ids,
    Layout,
    TokenSource,
    damaged,
    in_range,
    list_beside,
    read_part,
)

_TYPES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 32: "<u4", 33: "<i4"} | {
    64: "<u8",
    65: "<i8",
}


class MdsSource(TokenSource):
    """Shards of MDS: each sample is a document, in one column."""

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for documents: the column, by default the only of integers.

        Raises:
            InputError: There is no such column.
        """
        beside = list_beside(map(_beside, files.paths), "the index of MDS")
        spec = SourceSpec(format="mds", schema=beside)
        source, given = cls(spec), {*files.paths}
        for path in {_beside(each): each for each in files.paths}.values():
            for name in source._described(path):
                listed = posixpath.join(posixpath.dirname(path), name)
                if listed not in given and storage_for(listed).stat(listed) is None:
                    raise InputError(
                        "a shard that the index lists is missing",
                        where=listed,
                        expected=f"all shards of {_beside(path)}",
                        cure="copy it there, or take it out of the index",
                    )
        shard = source._of(files.paths[0])
        names, kinds = shard["column_names"], shard["column_encodings"]
        encodings = dict(zip(names, kinds, strict=True))
        arrays = [name for name in names if encodings[name].startswith("ndarray")]
        chosen = options.columns or arrays
        if options.record or len(chosen) != 1 or chosen[0] not in arrays:
            raise InputError(
                "no column of the shards is chosen that holds tokens",
                where=files.paths[0],
                expected="--columns with one column of encoding ndarray",
                got=", ".join(f"{name}: {kind}" for name, kind in encodings.items()),
                cure="name it; columns of other kinds hold no tokens",
            )
        return spec._replace(columns=tuple(chosen))

    def _described(self, path: str) -> dict[str, dict[str, Any]]:
        """Returns the entries of shards in the index beside one, by their names."""
        beside = _beside(path)
        content = self.read_beside(beside)
        try:
            shards = json.loads(content)["shards"]
            return {shard["raw_data"]["basename"]: shard for shard in shards}
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(beside, 0, f"no list of shards: {error!r}") from error

    def _of(self, path: str) -> dict[str, Any]:
        """Returns the entry of a shard."""
        name = posixpath.basename(path)
        found = self._described(path).get(name)
        if found is None:
            raise damaged(_beside(path), 0, f"no shard {name}")
        return found

    def layout(self, file: InputFile, begin: int, end: int) -> Layout:
        """Returns the documents that begin in a range."""
        shard = self._of(file.path)
        names, sizes = shard["column_names"], shard["column_sizes"]
        try:
            (count,) = np.frombuffer(read_part(file, 0, 4), "<u4").tolist()
            head = read_part(file, 4, 8 + 4 * count)
            places = np.frombuffer(head, "<u4").astype(np.int64)
            if (np.diff(places) < 0).any() or places[-1] != file.size_bytes:
                got = f"samples up to byte {int(places[-1]):,} of {file.size_bytes:,}"
                raise ValueError(got)  # noqa: TRY301
            number = names.index(self.spec.columns[0])
            kind = shard["column_encodings"][number]
        except ValueError as error:
            raise damaged(file.path, 0, str(error)) from error
        decode = functools.partial(_ids, sizes=sizes, number=number, kind=kind)
        return in_range(places, begin, end, decode)


def _beside(path: str) -> str:
    return posixpath.join(posixpath.dirname(path), "index.json")


def _ids(data: bytes, *, sizes: list[int | None], number: int, kind: str) -> Ids:
    """Returns the ids of a sample."""
    variable = [at for at, size in enumerate(sizes) if size is None]
    told = np.frombuffer(data, "<u4", len(variable)).tolist()
    known = dict(zip(variable, told, strict=True))
    lengths = [known.get(at, size) or 0 for at, size in enumerate(sizes)]
    begin = 4 * len(variable) + sum(lengths[:number])
    if 4 * len(variable) + sum(lengths) != len(data):
        raise ValueError(f"columns of {sum(lengths):,} bytes in {len(data):,}")
    value = data[begin : begin + lengths[number]]
    _, dtype, shape = (*kind.split(":"), "", "")[:3]
    at = 0
    if not dtype:
        dtype, at = _TYPES.get(value[0], "?"), 1
    if not shape:
        axes, width = value[at] >> 2, 1 << (value[at] & 3)
        at += 1 + axes * width
        if axes != 1:
            raise ValueError(f"an array of {axes} axes")
    found = np.dtype(dtype)
    if found.kind not in "ui" or "," in shape:
        raise ValueError(f"an array of {kind}, {found.name}")
    return np.frombuffer(value[at:], found.newbyteorder("<"))
