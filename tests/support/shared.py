"""What the processes of one run of the tests share: a folder, and locks in it."""

import contextlib
import fcntl
import os
import pathlib
import shutil

# Names the folder: the first process sets it, and those that it starts inherit it.
VARIABLE = "GRISTMILL_TESTS_SHARED"


def folder():
    """Returns the folder, which is removed after the run."""
    return pathlib.Path(os.environ[VARIABLE])


@contextlib.contextmanager
def locked(name, *, shared=False):
    """Holds a lock: one process does, or any number that share it.

    A lock belongs to this process alone: one that it forked and left behind cannot
    keep it.
    """
    with (folder() / f"{name}.lock").open("a+b") as file:
        fcntl.lockf(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def running(*, alone):
    """Runs a test beside others, or alone once those that run have ended."""
    with contextlib.ExitStack() as stack:
        # Held by a test that waits to be alone: no other begins meanwhile.
        with locked("next"):
            stack.enter_context(locked("running", shared=not alone))
        yield


def made_once(name, make):
    """Returns a folder that the first process that asks for it fills.

    Args:
        name: Of the folder.
        make: Fills the folder, which exists and is empty.

    Raises:
        ValueError: Another function has filled a folder of this name.
    """
    path, made = folder() / name, folder() / f"{name}.made"
    maker = f"{make.__module__}.{make.__qualname__}"
    with locked(name):
        if not made.exists():
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            make(path)
            made.write_text(maker)
        elif made.read_text() != maker:
            raise ValueError(f"{made.read_text()} has filled {name}, not {maker}")
    return path
