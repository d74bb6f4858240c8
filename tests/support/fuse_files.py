"""A file system of FUSE that shows a directory, as `gcsfuse` shows a bucket.

It is started under that name, with flags of gcsfuse, as root in a mount namespace of
its own. Without `--implicit-dirs` it hides directories, and with `--silent` it answers
nothing but the greeting.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import stat
import struct
import sys

_HEADER = struct.Struct("<IIQQIIII")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE = 1, 2, 3, 14, 15, 17, 18
_FLUSH, _INIT, _OPENDIR, _READDIR, _RELEASEDIR, _BATCH_FORGET = 25, 26, 27, 28, 29, 42
_INTERRUPT = 36
# Who waits for an answer cannot even be killed: not for ever.
_LIFE_SECONDS = 120


class Files:
    """The directory, with a number for each path that was looked up."""

    def __init__(self, root: str, *, implicit: bool):
        self.paths = {1: root}
        self.implicit = implicit

    def number(self, path: str) -> int:
        for number, known in self.paths.items():
            if known == path:
                return number
        self.paths[len(self.paths) + 1] = path
        return len(self.paths)

    def attributes(self, number: int) -> bytes:
        status = os.stat(self.paths[number])
        times = (int(status.st_mtime),) * 3
        return _ATTRIBUTES.pack(
            *(number, status.st_size, status.st_blocks, *times, 0, 0, 0),
            *(status.st_mode, status.st_nlink, 0, 0, 0, 4096, 0),
        )

    def answer(self, operation: int, number: int, body: bytes) -> bytes:
        path = self.paths[number]
        if operation == _LOOKUP:
            path = os.path.join(path, os.fsdecode(body.rstrip(b"\0")))
            if not self.implicit and stat.S_ISDIR(os.stat(path).st_mode):
                raise FileNotFoundError(errno.ENOENT, path)
            os.stat(path)
            found = self.number(path)
            return struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + self.attributes(found)
        if operation == _GETATTR:
            return struct.pack("<QII", 0, 0, 0) + self.attributes(number)
        if operation in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if operation in (_READ, _READDIR):
            _, offset, size = struct.unpack_from("<QQI", body)
            if operation == _READ:
                with open(path, "rb") as file:
                    return os.pread(file.fileno(), size, offset)
            return b"" if offset else self.entries(path)
        if operation == _STATFS:
            return struct.pack(
                "<QQQQQIIII24x", 1000, 900, 900, 99, 99, 4096, 255, 4096, 0
            )
        if operation in (_RELEASE, _RELEASEDIR, _FLUSH):
            return b""
        raise OSError(errno.ENOSYS, "not needed here")

    def entries(self, path: str) -> bytes:
        found = b""
        for place, name in enumerate(sorted(os.listdir(path)), 1):
            data = os.fsencode(name)
            one = struct.pack("<QQII", place, place, len(data), 0) + data
            found += one + bytes(-len(one) % 8)
        return found


def main(arguments: list[str]) -> None:
    """Mounts, and answers the kernel until it is unmounted."""
    signal.alarm(_LIFE_SECONDS)
    *flags, source, point = arguments
    device = os.open("/dev/fuse", os.O_RDWR)
    users = (
        "user_id=4242,group_id=0"
        if "--of-another-user" in flags
        else ("user_id=0,group_id=0,allow_other")
    )
    options = f"fd={device},rootmode=40755,{users}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    bucket = os.path.basename(source).encode()
    if libc.mount(bucket, point.encode(), b"fuse.gcsfuse", 1, options):
        raise OSError(ctypes.get_errno(), "cannot mount")
    files = Files(source, implicit="--implicit-dirs" in flags)
    while True:
        request = os.read(device, 1 << 20)
        _, operation, unique, number, *_ = _HEADER.unpack_from(request)
        body = request[_HEADER.size :]
        code, data = 0, b""
        if operation == _INIT:
            data = struct.pack(
                "<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 9, 9, 4096, 1, 32, 0, 0
            )
        elif operation in (_FORGET, _BATCH_FORGET, _INTERRUPT) or "--silent" in flags:
            continue
        else:
            try:
                data = files.answer(operation, number, body)
            except OSError as e:
                code = -(e.errno or errno.EIO)
        os.write(device, struct.pack("<IiQ", 16 + len(data), code, unique) + data)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as e:
        if e.errno != errno.ENODEV:  # It was unmounted.
            raise
