"""Local files (`base`, `local`, and patterns of `paths`)."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator

import pytest

from gristmill.dataset.base.errors import StorageChangedError, StorageError
from gristmill.dataset.storage.directory_lock import delete_unfinished
from gristmill.dataset.storage.local import LocalStorage
from gristmill.dataset.storage.lookup import version_of
from tests.support.watched import failing, watched


@pytest.fixture
def common_folder() -> Iterator[pathlib.Path]:
    """A directory that every user may enter and write to."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        yield pathlib.Path(name)


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Acts as a user to whom permissions apply, which root is not."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.fixture
def storage() -> LocalStorage:
    return LocalStorage()


def names(found) -> list[str]:
    return [os.path.basename(info.path) for info in found]


class TestFinding:
    @pytest.fixture
    def folder(self, tmp_path: pathlib.Path) -> pathlib.Path:
        tmp_path = tmp_path / "folder"
        tmp_path.mkdir()
        for name in ("b.rec", "a.rec", "a[1].rec", "a1.rec", ".hidden.rec", "c.txt"):
            (tmp_path / name).write_text(name)
        (tmp_path / "sub.rec").mkdir()
        (tmp_path / "sub.rec" / "d.rec").write_text("d")
        (tmp_path / "link.rec").symlink_to("b.rec")
        return tmp_path

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.rec", ["a.rec", "a1.rec", "a[1].rec", "b.rec", "link.rec"]),
            ("?.rec", ["a.rec", "b.rec"]),
            ("[ab].rec", ["a.rec", "b.rec"]),
            ("a.rec", ["a.rec"]),
            # A file of exactly that name wins over what it could stand for.
            ("a[1].rec", ["a[1].rec"]),
            ("a[[]1].rec", ["a[1].rec"]),
            ("a[12].rec", ["a1.rec"]),
            ("missing.rec", []),
            ("missing*", []),
            ("sub.rec", []),
            ("a.rec/b", []),
            ("*.rec/d.rec", ["d.rec"]),
            (
                "**",
                ["a.rec", "a1.rec", "a[1].rec", "b.rec", "c.txt", "link.rec", "d.rec"],
            ),
            (".*.rec", [".hidden.rec"]),
            (
                "**/*.rec",
                ["a.rec", "a1.rec", "a[1].rec", "b.rec", "link.rec", "d.rec"],
            ),
        ],
    )
    def test_patterns(self, storage, folder, pattern: str, expected: list[str]):
        found = storage.match(str(folder / pattern))
        assert names(found) == expected
        for info in found:
            assert info.size_bytes == os.path.getsize(info.path)
            assert info == storage.stat(info.path)

    def test_listing_shows_files_only(self, storage, folder):
        assert names(storage.list(str(folder))) == [
            *(".hidden.rec", "a.rec", "a1.rec", "a[1].rec", "b.rec", "c.txt"),
            "link.rec",
        ]
        assert storage.list(str(folder / "missing")) == []

    def test_listing_a_file_is_an_error(self, storage, folder):
        with pytest.raises(StorageError, match="a part of it is a file"):
            storage.list(str(folder / "a.rec"))

    def test_files_that_vanish_from_a_listing_do_not_hide_the_others(
        self, storage, folder, monkeypatch
    ):
        # Temporary files of other workers come and go.
        def vanish(path, **options):
            if str(path).endswith("a1.rec"):
                os.unlink(path)

        watched(monkeypatch, os, "stat", vanish)
        found = names(storage.list(str(folder)))
        assert "b.rec" in found
        assert "a1.rec" not in found

    @pytest.mark.parametrize("pattern", ["*.rec", "**/*.rec"])
    def test_a_file_that_vanishes_while_it_is_matched_is_an_error(
        self, storage, folder, monkeypatch, pattern: str
    ):
        def vanish(path, **options):
            if str(path).endswith("a1.rec"):
                pathlib.Path(path).unlink(missing_ok=True)

        watched(monkeypatch, os, "stat", vanish)
        with pytest.raises(StorageError, match="does not exist") as caught:
            storage.match(str(folder / pattern))
        assert str(folder / "a1.rec") in str(caught.value)


class TestReading:
    @pytest.mark.parametrize("method", ["open", "read"])
    def test_a_directory_is_no_file(self, storage, tmp_path, method: str):
        with pytest.raises(StorageError, match="Is a directory"):
            getattr(storage, method)(str(tmp_path))

    @pytest.mark.parametrize("method", ["open", "read"])
    def test_what_may_not_be_read(self, storage, common_folder, method: str):
        path = common_folder / "secret"
        path.write_text("x")
        path.chmod(0)
        with (
            without_privileges(),
            pytest.raises(StorageError, match="check the permissions"),
        ):
            getattr(storage, method)(str(path))


class TestWriting:
    def test_others_may_read_what_is_written(self, storage, tmp_path):
        old = os.umask(0o022)
        try:
            storage.write(str(tmp_path / "a"), b"one")
        finally:
            os.umask(old)
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644

    def test_readers_see_the_old_or_the_new_file(self, storage, tmp_path):
        path = str(tmp_path / "a")
        contents = [bytes([i]) * 200_000 for i in range(2)]
        storage.write(path, contents[0])
        done = threading.Event()
        seen: list[bytes] = []

        def read() -> None:
            while not done.is_set():
                seen.append(storage.read(path))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for i in range(100):
                storage.write(path, contents[i % 2])
        finally:
            done.set()
            reader.join()
        assert seen
        assert all(data in contents for data in seen)

    def test_a_failed_write_leaves_the_old_file_and_nothing_else(
        self, storage, tmp_path, monkeypatch
    ):
        path = tmp_path / "a"
        storage.write(str(path), b"old")

        full = OSError(errno.ENOSPC, "No space left on device")
        failing(monkeypatch, os, "fsync", full)
        with pytest.raises(StorageError, match="free some space") as caught:
            storage.write(str(path), b"new")
        assert str(path) in str(caught.value)
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["a"]

    def test_a_full_disk(self, tmp_path):
        # A limit on the size of files acts as a full disk does.
        script = textwrap.dedent(
            """
            import resource, sys
            from gristmill.dataset.base.errors import StorageError
            from gristmill.dataset.storage.local import LocalStorage

            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            try:
                LocalStorage().write(sys.argv[1], bytes(100_000))
            except StorageError as error:
                print(error)
                sys.exit(3)
            """
        )
        path = tmp_path / "out" / "a"
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        assert "cannot write the file" in done.stdout
        assert str(path) in done.stdout
        assert os.listdir(path.parent) == []

    @pytest.mark.parametrize("name", ["a", "new/a"])
    def test_a_directory_that_may_not_be_written(
        self, storage, common_folder, name: str
    ):
        common_folder.chmod(0o555)
        with (
            without_privileges(),
            pytest.raises(StorageError, match="check the permissions") as caught,
        ):
            storage.write(str(common_folder / name), b"x")
        assert str(common_folder) in str(caught.value)

    def test_what_killed_writers_left_is_deleted_and_nothing_else(
        self, storage, tmp_path
    ):
        left = [".0123456789abcdef.tmp", ".ffffffffffffffff.tmp"]
        others = ["a", ".hidden", ".tmp", ".0123456789abcdeg.tmp", "x.tmp"]
        for name in (*left, *others):
            (tmp_path / name).write_bytes(b"x")
        delete_unfinished(str(tmp_path))
        assert sorted(os.listdir(tmp_path)) == sorted(others)
        delete_unfinished(str(tmp_path / "missing"))

    @pytest.mark.parametrize("moment", ["fsync", "link", "replace"])
    def test_who_tidies_up_meanwhile_deletes_nothing(
        self, storage, tmp_path, monkeypatch, moment: str
    ):
        seen = []

        def tidy(*args):
            delete_unfinished(str(tmp_path))
            seen.append([name for name in os.listdir(tmp_path) if name != "a"])

        path = tmp_path / "a"
        if moment != "link":
            path.write_bytes(b"old")
        watched(monkeypatch, os, moment, tidy)
        storage.write(str(path), b"new", replaces=version_of(str(path)))
        assert [len(left) for left in seen[:1]] == [1]
        assert path.read_bytes() == b"new"
        assert os.listdir(tmp_path) == ["a"]

    @pytest.mark.slow
    def test_writers_and_those_who_tidy_up_at_once(self, storage, tmp_path):
        ended = threading.Event()

        def tidy_up() -> None:
            while not ended.is_set():
                delete_unfinished(str(tmp_path))

        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            tidying = [pool.submit(tidy_up) for _ in range(2)]
            try:
                for number in range(300):
                    storage.write(str(tmp_path / "a"), b"%d" % number)
                    assert (tmp_path / "a").read_bytes() == b"%d" % number
            finally:
                ended.set()
            for call in tidying:
                call.result()
        assert os.listdir(tmp_path) == ["a"]

    def test_a_killed_writer_keeps_nothing(self, storage, tmp_path):
        code = (
            "import os, sys\n"
            "from gristmill.dataset.storage.local import LocalStorage\n"
            "def stay(descriptor):\n"
            "    print(flush=True)\n"
            "    sys.stdin.read()\n"
            "os.fsync = stay\n"
            "LocalStorage().write(sys.argv[1], b'half')\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "a")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            delete_unfinished(str(tmp_path))
            assert len(os.listdir(tmp_path)) == 1
            process.kill()
        delete_unfinished(str(tmp_path))
        assert os.listdir(tmp_path) == []


class TestPublishing:
    def test_temporary_files_are_removed_and_never_the_same(self, storage, tmp_path):
        with (
            storage.temporary(str(tmp_path)) as a,
            storage.temporary(str(tmp_path)) as b,
        ):
            assert a != b
            assert os.path.basename(a).startswith(".")
            pathlib.Path(a).write_text("left")
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("links", [True, False])
    def test_of_many_that_create_a_file_at_once_one_does(
        self,
        storage: LocalStorage,
        tmp_path: pathlib.Path,
        monkeypatch: pytest.MonkeyPatch,
        links: bool,
    ) -> None:
        if not links:
            no_links = OSError(errno.EPERM, "not on this file system")
            failing(monkeypatch, os, "link", no_links)
        writers = 8 if links else 1
        barrier = threading.Barrier(writers)
        outcomes: dict[int, bool] = {}

        def write(number: int, path: str) -> None:
            barrier.wait(30)
            try:
                storage.write(path, b"%d" % number, replaces="")
            except StorageChangedError:
                outcomes[number] = False
            else:
                outcomes[number] = True

        for attempt in range(20):
            path = str(tmp_path / f"file{attempt}")
            threads = [
                threading.Thread(target=write, args=(number, path))
                for number in range(writers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
            (winner,) = (number for number, won in outcomes.items() if won)
            assert storage.read(path) == b"%d" % winner
            assert len(outcomes) == writers
            outcomes.clear()
        assert len(list(tmp_path.iterdir())) == 20  # Nothing temporary is left.
