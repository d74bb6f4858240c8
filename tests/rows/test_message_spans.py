"""The spans of messages in documents."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.dataset.packed.message_spans import ROLES, MessageSpans


def some(**changed: object) -> MessageSpans:
    """Returns the spans of three documents of 10, 0 and 5 tokens."""
    spans = MessageSpans(
        ends=np.array([2, 2, 3]),
        begins=np.array([1, 4, 0], np.uint32),
        lengths=np.array([3, 6, 5], np.uint32),
        roles=np.array([2, 3, 7], np.uint8),
        messages=np.array([0, 1, 0], np.uint32),
        trained=np.array([False, True, True]),
        weights=np.array([1, 0.5, 1], np.float32),
    )
    return spans._replace(**changed)


LENGTHS = np.array([10, 0, 5])


def test_what_they_tell() -> None:
    spans = some()
    spans.check(LENGTHS)
    assert spans.documents.tolist() == [0, 0, 2]
    assert spans.stops.tolist() == [4, 10, 5]
    none = MessageSpans.of_documents([[], [], []])
    none.check(LENGTHS)
    assert none.documents.tolist() == none.stops.tolist() == []
    assert len(ROLES) == 8


@pytest.mark.parametrize(
    "changed",
    [
        {"lengths": np.array([3, 0, 5], np.uint32)},
        {"begins": np.array([1, 3, 0], np.uint32)},  # They overlap.
        {"lengths": np.array([3, 7, 5], np.uint32)},
        {"roles": np.array([2, 8, 7], np.uint8)},
        *({"weights": np.array([1, w, 1], np.float32)} for w in (-1, np.nan, np.inf)),
        {"ends": np.array([2, 2, 4])},
        {"ends": np.array([3, 2, 3])},
        {"ends": np.array([2, 3])},
        {"messages": np.zeros(2, np.uint32)},
    ],
)
def test_spans_that_make_no_sense(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="span"):
        some(**changed).check(LENGTHS)
