"""The records of a run that resumed, beside those of one that went through."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.resume.protocol import Numbers


def compare(
    whole: Sequence[Numbers], resumed: Sequence[Numbers], records: int
) -> dict[str, int]:
    """Returns how many records are lost, repeated, or in another batch.

    A record is counted once: lost if it, or some of its tokens, came less often than in
    the uninterrupted run, repeated if more often, else moved if it came in other
    batches.

    Args:
        whole: The numbers in each global batch of the uninterrupted run: of records, or
            of tokens, which say their record.
        resumed: Those of the run that was stopped, with what followed.
        records: How many records there were. `new` are those that came later.
    """
    size = 1 + max((int(n.max()) for n in (*whole, *resumed) if len(n)), default=0)
    size = max(size, records)
    was, became = _counts(whole, size), _counts(resumed, size)
    old = np.arange(size) < records
    lost, repeated = (became < was) & old, (became > was) & old
    moved = np.zeros(size, bool)
    for step in range(max(len(whole), len(resumed))):
        one = whole[step] if step < len(whole) else ()
        other = resumed[step] if step < len(resumed) else ()
        if not np.array_equal(np.sort(one), np.sort(other)):
            moved |= _counts([np.asarray(one, int)], size) != _counts(
                [np.asarray(other, int)], size
            )
    moved &= old & ~lost & ~repeated
    return {
        "lost": int(lost.sum()),
        "repeated": int(repeated.sum()),
        "moved": int(moved.sum()),
        "new": int((became > 0)[records:].sum()),
    }


def _counts(steps: Sequence[Numbers], size: int) -> Numbers:
    if not steps:
        return np.zeros(size, np.int64)
    return np.bincount(np.concatenate(steps), minlength=size)
