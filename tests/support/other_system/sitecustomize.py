"""Takes away what only Linux has from processes with this folder on `PYTHONPATH`.

`sched_getaffinity`, `posix_fallocate` and `posix_fadvise` are gone, `/proc`, `/sys` and
`/dev/shm` seem to be missing, and directories cannot be locked.
"""

import builtins
import errno
import fcntl
import io
import multiprocessing.heap
import os
import stat

_HIDDEN = ("/proc", "/sys", "/dev/shm")

for _name in ("sched_getaffinity", "posix_fallocate", "posix_fadvise"):
    if hasattr(os, _name):
        delattr(os, _name)


def _hiding(function):
    def hidden(path=".", *args, **options):
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if any(text == each or text.startswith(f"{each}/") for each in _HIDDEN):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text)
        return function(path, *args, **options)

    return hidden


for _name in ("listdir", "lstat", "open", "scandir", "stat", "statvfs"):
    setattr(os, _name, _hiding(getattr(os, _name)))
io.open = builtins.open = _hiding(builtins.open)

# Chosen on Linux alone, when the module is imported.
multiprocessing.heap.Arena._dir_candidates = []

_flock = fcntl.flock


def _flock_of_files(file, operation):
    descriptor = file if isinstance(file, int) else file.fileno()
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
    _flock(file, operation)


fcntl.flock = _flock_of_files
