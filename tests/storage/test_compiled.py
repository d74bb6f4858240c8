"""The compiled part: what Python decodes, or nothing, whatever the bytes are."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import sysconfig

import numpy as np
import pytest

from gristmill.dataset.arrayrecord import compiled
from gristmill.dataset.arrayrecord.chunks import WANTED, pick_records
from gristmill.dataset.arrayrecord.footer import ChunkRange
from tests.support.distributions import CAN_COMPILE, ROOT
from tests.support.records import array_record_bytes, footer_of, text_records

SOURCE = ROOT / "dataset" / "arrayrecord" / "_compiled.c"

needs_compiler = pytest.mark.skipif(not CAN_COMPILE, reason="no C compiler here")


@needs_compiler
def test_it_is_there_with_its_libraries_where_it_can_be() -> None:
    assert compiled.decoder() is not None, "install gristmill again: it is compiled"


@needs_compiler
@pytest.mark.parametrize("options", ["zstd:3", "zstd:19", "uncompressed"])
@pytest.mark.parametrize("group_size", [1, 16])
def test_it_decodes_what_the_official_writer_writes(
    options: str, group_size: int, tmp_path: pathlib.Path
) -> None:
    records = text_records(100)
    written = f"group_size:{group_size},{options}"
    data = array_record_bytes(records, options=written, folder=str(tmp_path))
    footer = footer_of(data)
    begin, *_, end = footer.chunk_offsets.tolist()
    chunks = len(footer.chunk_records)
    encoded = ChunkRange("x", footer, 0, chunks, 0, data[begin:end]).encoded()
    last = np.zeros(chunks, WANTED)
    last["chunk"] = last["place"] = np.arange(chunks)
    last["row"], last["crc32c"] = footer.chunk_records - 1, -1
    out: list[bytes | None] = [None] * chunks
    none = np.empty(0, np.int64)
    assert pick_records(none, encoded.buffer, encoded.table, last, out) == []
    assert out == [records[n - 1] for n in np.cumsum(footer.chunk_records)]


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Returns the arguments of Python for the fuzzer with an address sanitizer."""
    made = tmp_path_factory.mktemp("sanitized") / "_compiled.so"
    include = f"-I{sysconfig.get_paths()['include']}"
    flags = "-g -O1 -fsanitize=address -shared -fPIC -DPy_LIMITED_API=0x030B0000"
    command = ["gcc", *flags.split(), include, str(SOURCE), "-o", str(made)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("there is no gcc with a sanitizer here")
    return ["-m", "tests.storage.fuzz_chunks", str(made)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "cases"),
    [
        (1, 10_000),
        *(pytest.param(n, 100_000, marks=pytest.mark.soak) for n in range(2, 12)),
    ],
)
def test_damaged_chunks_are_left_or_decoded_as_by_python(
    sanitized: list[str], seed: int, cases: int
) -> None:
    library = subprocess.check_output(["gcc", "-print-file-name=libasan.so"], text=True)
    asan = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, *sanitized, str(seed), str(cases)],
        cwd=ROOT,
        env={**os.environ, **asan, "LD_PRELOAD": library.strip()},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    left = int(done.stdout.split()[0])
    assert 0.2 * cases < left < 0.9 * cases
