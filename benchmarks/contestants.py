"""The ways to convert TFRecords to ArrayRecord that the benchmark compares."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Sequence

from benchmarks import c4_like


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """TFRecord files to convert.

    Attributes:
      kind: "startup", "small", "main", or "memory" for the sizes that show growth.
      directory: holds them, and TFDS metadata.
      files: in order.
    """

    kind: str
    directory: pathlib.Path
    files: tuple[c4_like.WrittenFile, ...]

    @property
    def paths(self) -> list[str]:
        """The files, in order."""
        return [str(file.path) for file in self.files]

    @property
    def pattern(self) -> str:
        """A glob that matches the files and nothing else."""
        return f"{self.directory}/*.tfrecord-*"

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def records(self) -> int:
        """Records of all files."""
        return sum(file.records for file in self.files)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to convert.

    Attributes:
      label: for people.
      packages: modules that must be there.
      imports: Python that imports what the process needs before any data.
      command: the process for an input and an output directory that is not there.
    """

    label: str
    packages: tuple[str, ...]
    imports: str
    command: Callable[[Input, pathlib.Path], list[str]]


def _gristmill(source: Input, output: pathlib.Path, *, workers: int) -> list[str]:
    # The module that the `gristmill` command calls, under this very interpreter.
    return [
        *(sys.executable, "-m", "gristmill", "convert"),
        *source.paths,
        str(output),
        f"--workers={workers}",
        "--match-shards",
        "--group-size=1",
        "--compression=zstd:3",
    ]


def _array_record_beam(
    source: Input, output: pathlib.Path, *, extra: Sequence[str] = ()
) -> list[str]:
    return [
        *(sys.executable, "-m", "benchmarks.peers", "array_record_beam"),
        *(source.pattern, f"{output}/c4", f"--num-shards={len(source.files)}"),
        *extra,
    ]


def _tfds(source: Input, output: pathlib.Path) -> list[str]:
    # What `tfds convert_format` runs; the `tfds` command itself fails to start
    # where mlcroissant is not installed.
    return [
        *(sys.executable, "-m", "tensorflow_datasets.scripts.convert_format"),
        f"--dataset_version_dir={source.directory}",
        f"--out_dir={output}",
        "--out_file_format=array_record",
    ]


def _bare(
    source: Input, output: pathlib.Path, *, reader: str = "plain", workers: int = 1
) -> list[str]:
    return [
        *(sys.executable, "-m", "benchmarks.peers", "bare"),
        *(str(output), *source.paths, f"--reader={reader}", f"--workers={workers}"),
    ]


_BEAM_IMPORTS = "from array_record.beam import pipelines"
_WRITER_IMPORTS = "import array_record.python.array_record_module"
_GRISTMILL_IMPORTS = "import gristmill.pipelines.convert; " + _WRITER_IMPORTS

CONTESTANTS = {
    **{
        f"gristmill_{workers}": Contestant(
            label=f"gristmill convert --workers {workers}",
            packages=("gristmill", "array_record"),
            imports=_GRISTMILL_IMPORTS,
            command=functools.partial(_gristmill, workers=workers),
        )
        for workers in (1, 2)
    },
    "array_record_beam": Contestant(
        label="array_record.beam convert_tf_to_arrayrecord_disk",
        packages=("apache_beam", "array_record", "tensorflow"),
        imports=_BEAM_IMPORTS,
        command=_array_record_beam,
    ),
    "array_record_beam_2": Contestant(
        label="the same, multi_processing with 2 workers",
        packages=("apache_beam", "array_record", "tensorflow"),
        imports=_BEAM_IMPORTS,
        command=functools.partial(_array_record_beam, extra=["--workers=2"]),
    ),
    "array_record_beam_match_shards": Contestant(
        label="array_record.beam ..._disk_match_shards",
        packages=("apache_beam", "array_record", "tensorflow"),
        imports=_BEAM_IMPORTS,
        command=functools.partial(_array_record_beam, extra=["--match-shards"]),
    ),
    "tfds": Contestant(
        label="tfds convert_format",
        packages=("tensorflow_datasets", "tensorflow", "array_record"),
        imports="import apache_beam, tensorflow, tensorflow_datasets",
        command=_tfds,
    ),
    "bare": Contestant(
        label="bare loop, frames sliced without checks",
        packages=("array_record",),
        imports=_WRITER_IMPORTS,
        command=_bare,
    ),
    "bare_tensorflow": Contestant(
        label="bare loop, TensorFlow's reader",
        packages=("array_record", "tensorflow"),
        imports="import tensorflow; " + _WRITER_IMPORTS,
        command=functools.partial(_bare, reader="tensorflow"),
    ),
    "bare_pool": Contestant(
        label="bare pool of 2, frames sliced without checks",
        packages=("array_record",),
        imports=_WRITER_IMPORTS,
        command=functools.partial(_bare, workers=2),
    ),
}
