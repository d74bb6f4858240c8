"""The official writer: that of array_record."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.dataset.arrayrecord.writer_options import WriterOptions


class WriterError(Exception):
    """The official writer failed; the text is its own."""


class OfficialWriter:
    """Writes records to a local file with the official `ArrayRecordWriter`.

    It does not raise on every failure, such as a full disk, and leaves an empty file
    when it is not closed: its output has to be read back.

    Args:
        path: Local file to create.
        options: Encoding of the file.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: str, options: WriterOptions):
        # Imported here so that readers of datasets do not need it.
        from array_record.python.array_record_module import ArrayRecordWriter

        # The official constructor accepts any path and fails later.
        open(path, "wb").close()
        self._writer = ArrayRecordWriter(path, options.official)

    def write(self, records: Sequence[bytes]) -> None:
        """Appends records. Raises WriterError."""
        write = self._writer.write
        try:
            for record in records:
                write(record)
        except MemoryError:
            raise
        except Exception as e:  # Its other errors are not documented.
            raise WriterError(str(e)) from e

    def finish(self) -> None:
        """Closes the file. Raises WriterError."""
        if not self._writer.ok():  # False after `close`.
            raise WriterError("the official writer reports a failure")
        self.abandon()

    def abandon(self) -> None:
        """Closes the file in any state. Raises WriterError."""
        try:
            self._writer.close()
        except Exception as e:
            raise WriterError(str(e)) from e
