"""The check that template, tokenizer and column fit the documents of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.transforms.jobs.pack_options import PackOptions

_MOST_PERCENT = 50


class Misfit(NamedTuple):
    """A fault of options, shown by documents; the fields are those of an error.

    Attributes:
        name: Its name among the examples of a reader.
        what: The fault.
        expected: The expected documents.
        got: The number of others.
        cure: What to do.
    """

    name: str
    what: str
    expected: str
    got: str
    cure: str


def check_fit(
    pack: PackOptions,
    counts: PackedCounts,
    example_of: Callable[[str], str | None],
    *,
    bytes_texts: int | None = None,
) -> None:
    """Checks that options fit the documents of a split, or the first of them.

    Args:
        pack: The options.
        counts: The counts of the documents.
        example_of: Returns the place of a misfit, by its name.
        bytes_texts: For a check of the first documents only: the number of texts in
            Python's notation of bytes. Then only a fault of all documents, or one that
            is never right, is an error.

    Raises:
        InputError: They do not fit.
    """
    tried = bytes_texts is not None
    for found in misfits(pack, counts, bytes_texts=bytes_texts):
        raise InputError(
            found.what,
            where=example_of(found.name),
            expected=found.expected,
            got=found.got + " of those tried" * tried,
            cure=found.cure,
        )


def misfits(
    pack: PackOptions, counts: PackedCounts, *, bytes_texts: int | None = None
) -> Iterator[Misfit]:
    """Yields the misfits; arguments are as for `check_fit`."""
    accepted, tried = pack.accept.split(","), bytes_texts is not None
    total = counts.documents + counts.empty_documents

    def too_many(count: int, percent: float, of: int) -> bool:
        return count > 0 and (count == of if tried else 100 * count > percent * of)

    def share(count: int, of: int, noun: str) -> str:
        return f"{count:,} of {of:,} {noun}"

    if pack.chat is not None:
        noun = "conversations"
        if counts.open_turns and "open-turns" not in accepted:
            yield Misfit(
                "open_turns",
                "a trained message has no end of turn that is one token of the "
                "tokenizer: a model would not learn to stop",
                "after each a special token that the template also writes at the end",
                f"{counts.open_turns:,} trained messages",
                "give the tokenizer of the model with this template; or --train last; "
                "or --accept open-turns",
            )
        most = pack.chat.max_rejected
        rejected = too_many(counts.aside_rejected, most, total)
        if rejected:
            yield Misfit(
                "rejected",
                "conversations cannot be used with this template",
                f"at most {most:g} % that are set aside for it",
                share(counts.aside_rejected, total, noun),
                "correct them or the template, which `gristmill audit` explains; or "
                "raise --max-rejected",
            )
        if "long" not in accepted and too_many(counts.aside_long, _MOST_PERCENT, total):
            yield Misfit(
                "long",
                "most conversations are longer than a row",
                f"rows of more than {pack.length:,} tokens",
                share(counts.aside_long, total, noun),
                "raise --length; or --accept long",
            )
        if not (counts.documents or tried or rejected):
            yield Misfit(
                "untrained",
                "no row can be made: no conversation has a token that is trained on",
                "messages as --train says",
                share(counts.aside_untrained, total, noun) + " without",
                "correct --train, --column or --weight-column",
            )
    elif not counts.documents and not tried:
        yield Misfit(
            "empty",
            "no row can be made: no document has a token",
            f"text or tokens in the column {pack.column!r}",
            share(counts.empty_documents, total, "documents") + " without",
            "choose another --column, or see what --map returns",
        )
    own = counts.tokens + counts.truncated_tokens - counts.special_tokens
    if "unknown" not in accepted and too_many(
        counts.unknown_tokens, _MOST_PERCENT, own
    ):
        yield Misfit(
            "unknown",
            "most of the text is not in the vocabulary of the tokenizer",
            "tokens other than the unknown one",
            share(counts.unknown_tokens, own, "tokens"),
            "give the tokenizer of this language or kind of text; or --accept unknown",
        )
    if bytes_texts and "bytes" not in accepted and bytes_texts == counts.documents:
        yield Misfit(
            "bytes",
            "texts are Python's notation of bytes, as str(b'...') gives",
            "the text itself",
            share(bytes_texts, counts.documents, "documents"),
            "decode it where it is made, or with --map; or --accept bytes",
        )
