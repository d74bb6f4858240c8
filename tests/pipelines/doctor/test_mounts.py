"""Mounts of FUSE, made for real: who shows a directory calls itself gcsfuse."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.pipelines.doctor.dataset_place import (
    DatasetPlace,
    mount_of,
    parse_mounts,
)
from gristmill.pipelines.doctor.mounts import _gcsfuse_flags, look_at_mount
from tests.support.datasets import convert
from tests.support.namespaces import run_mounting

# As a kernel lists mounts: blanks as octal numbers, one mount over another.
TABLE = """\
22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
90 22 0:50 / /mnt/my\\040data ro,nosuid - fuse.gcsfuse corpora ro,user_id=7,group_id=7
91 22 0:51 / /mnt rw - tmpfs tmpfs rw,size=1024k
92 22 0:52 / /mnt rw - xfs /dev/sdb rw
a line of a later kernel
"""

MOUNTS = """
import dataclasses, json, sys
from gristmill.pipelines.doctor import dataset_place, mounts
from tests.support.fuse_files import start

dataset_place._SECONDS = 90.0
source, new, folder = sys.argv[1:]
config = f"{folder}/config.yaml"
open(config, "w").write(
    "implicit-dirs: true\\ncache-dir: /disk\\nfile-cache:\\n"
    "  cache-file-for-range-read: true\\nmetadata-cache:\\n"
    "  ttl-secs: -1\\n  stat-cache-max-size-mb: -1\\n"
)
ways = {
    "plain": (source, []),
    "seen": (source, ["--implicit-dirs", "--only-dir=c4/", "--cache-dir", "/disk"]),
    "configured": (source, ["--implicit-dirs", f"--config-file={config}"]),
    "profile": (source, ["--implicit-dirs", "--profile=aiml-training"]),
    "output": (new, ["--implicit-dirs"]),
    "foreign": (source, ["--of-another-user"]),
    "silent": (source, ["--silent"]),
}
found = {}
for name, (directory, flags) in ways.items():
    import os
    point = f"{folder}/{name}"
    os.mkdir(point)
    # It may be a busy machine.
    dataset_place._MOUNT_SECONDS = 0.3 if name == "silent" else 60.0
    process = start(directory, point, *flags)
    findings = mounts.look_at_mount(dataset_place.DatasetPlace(point))
    found[name] = [dataclasses.asdict(finding) for finding in findings]
    if name == "seen":
        process.kill()
        process.wait()
        found["dead"] = mounts._gcsfuse_flags(point)
print(json.dumps(found))
"""


def test_mounts_are_found_by_the_list_of_the_kernel() -> None:
    root, data, below, above = parse_mounts(TABLE)
    assert (root.kind, root.point, root.device) == ("ext4", "/", "259:1")
    assert (data.kind, data.point, data.source) == (
        *("fuse.gcsfuse", "/mnt/my data"),
        "corpora",
    )
    assert {"ro", "nosuid", "user_id=7"} <= data.options
    assert (below.kind, above.kind) == ("tmpfs", "xfs")


def test_a_local_disk_is_fine(tmp_path: pathlib.Path) -> None:
    mount = mount_of(str(tmp_path))
    assert mount is not None
    (found,) = look_at_mount(DatasetPlace(str(tmp_path)))
    assert found.level == "ok"
    assert mount.kind in found.seen
    assert _gcsfuse_flags(str(tmp_path)) is None
    assert [*look_at_mount(DatasetPlace("gs://bucket/c4"))] == []


@pytest.mark.slow
def test_flags_of_fuse_matter(tmp_path: pathlib.Path) -> None:
    source = convert(tmp_path / "corpora", [[b"a", b"b"]])
    (tmp_path / "new").mkdir()
    points = tmp_path / "points"
    points.mkdir()
    found = run_mounting(MOUNTS, source, str(tmp_path / "new"), str(points), fuse=True)
    hidden, slow = found["plain"]
    assert hidden["level"] == "error"
    assert "no directory index/" in hidden["seen"]
    assert hidden["cure"] == "mount with --implicit-dirs, or give gs://out"
    assert (slow["level"], "4 flags not given" in slow["seen"]) == ("warning", True)
    assert "--cache-dir=/a/disk" in slow["cure"]

    (slow,) = found["seen"]  # The flag that it has is not asked for.
    assert "3 flags not given" in slow["seen"]
    assert "cache-dir" not in slow["cure"]
    assert "--stat-cache-max-size-mb=-1" in slow["cure"]
    assert slow["cure"].startswith("give the loader gs://out/c4, or mount")
    assert found["dead"] is None

    (profile,) = found["profile"]
    assert "2 flags not given (cache-dir: every epoch" in profile["seen"]

    (well,) = found["configured"]
    assert (well["level"], "suit training" in well["seen"]) == ("ok", True)

    output, _ = found["output"]
    assert output["level"] == "warning"
    assert output["cure"] == "give gs://new as output"

    (foreign,), (silent,) = found["foreign"], found["silent"]
    assert foreign["level"] == silent["level"] == "error"
    assert "user_id 4242, for itself" in foreign["seen"]
    assert "allow_other" in foreign["cure"]
    assert "does not answer" in silent["seen"]
    assert silent["cure"].startswith("fusermount -uz ")
