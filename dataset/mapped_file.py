"""Maps local files so that a page that cannot be read does not end the process.

The kernel answers the use of a mapped page that it cannot load, because the file was
truncated or its disk failed, with the signal SIGBUS, which by default ends the process
without a message. Here a page of zeros takes its place, and the map is marked as
damaged. Whoever has read from maps asks `is_damaged` before trusting the bytes.

The signal comes in the reading thread itself, in the middle of a copy or a
decompression, and the handler is a function of Python. It may have to wait for the
interpreter's lock; no thread that holds the lock waits for such a copy. Faults
elsewhere are left to the handler that was there before.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import signal
import sys
import weakref
from typing import Any, BinaryIO

import numpy as np

_SA_SIGINFO = 4
_MAP_FIXED = 0x10
# Of siginfo_t: why the signal came, and at which address.
_CODE_AT, _ADDRESS_AT = 8, 16
_BUS_ADRALN = 1  # Not a page that is missing, as all larger codes are.


class _Action(ctypes.Structure):
    """`struct sigaction` of Linux on x86-64 and AArch64."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class MappedFile(mmap.mmap):
    """The bytes of a file, mapped for reading. Made by `map_file`.

    Attributes:
        damaged: Whether a page could not be read. It holds zeros since then.
    """

    damaged = False
    _begin = 0

    def replace_page(self, address: int) -> bool:
        """Puts zeros in place of the page at an address that cannot be read.

        Returns whether there was such a page, and whether it could be done.
        """
        if not self._begin <= address < self._begin + len(self):
            return False
        self.damaged = True
        page = address - address % mmap.PAGESIZE
        size = mmap.PAGESIZE
        if self.size() <= page - self._begin:  # Truncated: all that follows is lost.
            size = self._begin + len(self) - page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        return bool(_libc().mmap(page, size, mmap.PROT_READ, flags, -1, 0) == page)


_maps: weakref.WeakValueDictionary[int, MappedFile] = weakref.WeakValueDictionary()
_previous = _Action()
_damage_seen = False


def map_file(file: BinaryIO) -> MappedFile:
    """Maps a whole local file that is open; ValueError if it is empty."""
    mapped = MappedFile(file.fileno(), 0, access=mmap.ACCESS_READ)
    _handle_faults()
    address = np.frombuffer(mapped, np.uint8).__array_interface__["data"][0]
    mapped._begin = address
    _maps[address] = mapped
    return mapped


def damage_seen() -> bool:
    """Returns whether this process has a damaged map at all, or had one."""
    return _damage_seen


def is_damaged(view: object) -> bool:
    """Returns whether something is a view of a map with a page that was not read."""
    mapped = view.obj if isinstance(view, memoryview) else view
    return isinstance(mapped, MappedFile) and mapped.damaged


@functools.cache
def _libc() -> Any:
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long),
    ]
    return libc


@functools.cache
def _handle_faults() -> None:
    """Handles SIGBUS of this process, and of processes that are forked from it."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        return
    action = _Action(ctypes.cast(_HANDLER, ctypes.c_void_p), flags=_SA_SIGINFO)
    _libc().sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_previous))


def _on_fault(number: int, info: int, context: int) -> None:
    del context
    code = ctypes.c_int.from_address(info + _CODE_AT).value
    handled = False
    try:
        address = ctypes.c_uint64.from_address(info + _ADDRESS_AT).value
        handled = code > _BUS_ADRALN and _replace_page(address)
    finally:
        if not handled:
            # When this returns, the fault comes again; what was sent does not.
            _libc().sigaction(number, ctypes.byref(_previous), None)
            if code <= 0:
                signal.raise_signal(number)


def _replace_page(address: int) -> bool:
    global _damage_seen
    # First: other threads may read the zeros as soon as they are there.
    _damage_seen = True
    for reference in _maps.valuerefs():
        mapped = reference()
        if mapped is not None and mapped.replace_page(address):
            return True
    return False


# Kept for as long as the kernel may call it.
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
    _on_fault
)
