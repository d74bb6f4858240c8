"""Counts of packed rows, and the description of a split of them in `dataset.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError
from gristmill.dataset.packed.message_spans import ROLES


@dataclasses.dataclass(frozen=True, kw_only=True)
class SupervisionCounts:
    """The part of the counts of packed rows that only conversations have.

    For each role of `ROLES`: its tokens in rows, those of them that are trained on, and
    the documents that have a token of it. All are 0 for other rows, and not written.

    Attributes:
        trained_targets: Trained tokens that have a predecessor in their piece: the
            places of rows that the loss counts.
        merged_tokens: Tokens that belong to two parts, of which the second got none.
        special_contents: Contents that hold the text of a special token.
        open_turns: Trained messages after which the template writes no end of turn.
        aside_unproven: Conversations set aside because the template changes or drops a
            content.
        aside_untrained: Those without a trained token.
        aside_long: Those that are too long for a row.
        aside_special: Those whose contents hold the text of a special token.
        aside_malformed: Those that are not conversations.
        aside_template: Those at which the template fails.
        digest_spans: Sum of the digests of the spans of all documents, modulo 2**64.
    """

    system_tokens: int = 0
    developer_tokens: int = 0
    user_tokens: int = 0
    assistant_tokens: int = 0
    tool_tokens: int = 0
    thinking_tokens: int = 0
    tool_call_tokens: int = 0
    other_tokens: int = 0
    system_trained: int = 0
    developer_trained: int = 0
    user_trained: int = 0
    assistant_trained: int = 0
    tool_trained: int = 0
    thinking_trained: int = 0
    tool_call_trained: int = 0
    other_trained: int = 0
    system_documents: int = 0
    developer_documents: int = 0
    user_documents: int = 0
    assistant_documents: int = 0
    tool_documents: int = 0
    thinking_documents: int = 0
    tool_call_documents: int = 0
    other_documents: int = 0
    trained_targets: int = 0
    merged_tokens: int = 0
    special_contents: int = 0
    open_turns: int = 0
    aside_unproven: int = 0
    aside_untrained: int = 0
    aside_long: int = 0
    aside_special: int = 0
    aside_malformed: int = 0
    aside_template: int = 0
    digest_spans: int = 0

    @property
    def role_tokens(self) -> dict[str, int]:
        """The tokens in rows of each role."""
        return {role: getattr(self, f"{role}_tokens") for role in ROLES}

    @property
    def role_trained(self) -> dict[str, int]:
        """The trained tokens in rows of each role."""
        return {role: getattr(self, f"{role}_trained") for role in ROLES}

    @property
    def role_documents(self) -> dict[str, int]:
        """The documents in rows that have a token of each role."""
        return {role: getattr(self, f"{role}_documents") for role in ROLES}

    @property
    def is_supervised(self) -> bool:
        """Whether the rows have spans of messages."""
        return any(self.role_tokens.values())

    @property
    def trained_tokens(self) -> int:
        """The trained tokens in rows of all roles."""
        return sum(self.role_trained.values())

    @property
    def set_aside(self) -> dict[str, int]:
        """The conversations that were set aside, by reason; only reasons that occur."""
        found = {name: getattr(self, f"aside_{name}") for name in ASIDE}
        return {name: count for name, count in found.items() if count}


SUPERVISION = tuple(field.name for field in dataclasses.fields(SupervisionCounts))
"""The names of these counts."""

ASIDE = tuple(
    name.removeprefix("aside_") for name in SUPERVISION if name.startswith("aside_")
)
"""Reasons to set a conversation aside."""

IN_ROWS = (*SUPERVISION[: 3 * len(ROLES) + 1], "digest_spans")
"""The names of the counts that rows tell."""


MOST_PIECES = "most_pieces"
"""The count of several parts that is not a sum, but a maximum."""

_MASK = (1 << 64) - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedCounts(SupervisionCounts):
    """Counts of the rows of one shard, or of several added up.

    Tokens of all documents = tokens in rows + truncated tokens. Places of all rows =
    tokens + padding tokens. Counts that only the text can tell are made during packing:
    empty and truncated documents, special tokens, the size of the text. Conversations
    have those of `SupervisionCounts`, too.

    Attributes:
        documents: Documents that have a token, after `--map`.
        empty_documents: Documents without a token. No row has them.
        tokens: Tokens in rows, added ones included.
        special_tokens: Those added by `--bos` and `--eos`.
        pieces: Pieces of documents in rows. A row has `tokens - pieces` targets.
        padding_tokens: Places of rows without a token.
        cut_documents: Documents in more than one piece.
        truncated_documents: Documents that lost their end.
        truncated_tokens: The tokens that they lost.
        text_bytes: Size of the text as UTF-8, 0 for documents that were already tokens.
        most_pieces: Largest number of pieces in a row.
        digest_low: Sum of the first lane of the digests of all documents.
        digest_high: Sum of the second lane.
    """

    documents: int = 0
    empty_documents: int = 0
    tokens: int = 0
    special_tokens: int = 0
    pieces: int = 0
    padding_tokens: int = 0
    cut_documents: int = 0
    truncated_documents: int = 0
    truncated_tokens: int = 0
    text_bytes: int = 0
    most_pieces: int = 0
    digest_low: int = 0
    digest_high: int = 0

    @property
    def digest(self) -> RecordsDigest:
        """The digest of all documents: of their ids as little-endian uint32."""
        return RecordsDigest(
            records=self.documents,
            raw_bytes=4 * self.tokens,
            low=self.digest_low,
            high=self.digest_high,
        )

    @property
    def targets(self) -> int:
        """Tokens that have a successor in their piece."""
        return self.tokens - self.pieces

    def as_dict(self) -> dict[str, int]:
        """Returns the counts by name; the digest as 32 hexadecimal digits."""
        fields: dict[str, Any] = dataclasses.asdict(self)
        del fields["digest_low"], fields["digest_high"]
        fields["digest_spans"] = f"{self.digest_spans:016x}" * (self.digest_spans > 0)
        for name in SUPERVISION:
            if not fields[name]:
                del fields[name]
        return fields | {"digest": self.digest.hex}

    @classmethod
    def of_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds counts from `as_dict`, among other fields.

        Raises KeyError, TypeError or ValueError if one is missing.
        """
        digest = fields["digest"]
        names = [f.name for f in dataclasses.fields(cls) if "digest" not in f.name]
        known = dict.fromkeys(SUPERVISION, 0) | dict(fields)
        return cls(
            **{name: int(known[name]) for name in names},
            digest_low=int(digest[16:], 16),
            digest_high=int(digest[:16], 16),
            digest_spans=int(fields.get("digest_spans", "0"), 16),
        )

    def __add__(self, other: PackedCounts) -> PackedCounts:
        added = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in dataclasses.fields(self)
        }
        for lane in ("digest_low", "digest_high", "digest_spans"):
            added[lane] &= _MASK
        added[MOST_PIECES] = max(self.most_pieces, other.most_pieces)
        return PackedCounts(**added)


PACKED_COLUMNS = {
    f"packed_{field.name}": "<u8" if "digest" in field.name else "<i8"
    for field in dataclasses.fields(PackedCounts)
}
"""Columns of the table of shards that have the counts, and their types on disk."""


FORMAT = 1
SUPERVISED_FORMAT = 2
"""The format of rows with spans of messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedSplit:
    """A split of packed rows.

    Attributes:
        rows: `packed`, rows as docs/reference/format.md describes them; `example`, a
            `tf.train.Example` each.
        length: Maximum tokens of a row.
        id_bytes: Bytes that an id needs: 2, 3 or 4. Also the bytes of a token in a
            `packed` row, before compression.
        vocabulary_size: Upper bound of ids, exclusive.
        method: How documents were put into rows, such as `best-fit`.
        counts: Counts of the rows of all shards.
        supervised: Whether the rows have spans of messages.
    """

    rows: str
    length: int
    id_bytes: int
    vocabulary_size: int
    method: str
    counts: PackedCounts
    supervised: bool = False

    def encode(self) -> dict[str, Any]:
        """Returns the description for `dataset.json`."""
        own = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in ("counts", "supervised")
        }
        known = SUPERVISED_FORMAT if self.supervised else FORMAT
        return {"format": known, **own, **self.counts.as_dict()}

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, where: str) -> Self:
        """Parses a description.

        Args:
            fields: The description in `dataset.json`.
            where: The dataset, for messages.

        Raises:
            FormatVersionError: Its format is unknown.
            InvalidDatasetError: It is invalid.
        """
        if (known := fields.get("format")) not in (FORMAT, SUPERVISED_FORMAT):
            raise FormatVersionError.unknown(
                "packed rows", where=where, expected=SUPERVISED_FORMAT, got=known
            )
        try:
            found = cls(
                rows=str(fields["rows"]),
                length=int(fields["length"]),
                id_bytes=int(fields["id_bytes"]),
                vocabulary_size=int(fields["vocabulary_size"]),
                method=str(fields["method"]),
                counts=PackedCounts.of_dict(fields),
                supervised=known == SUPERVISED_FORMAT,
            )
        except (KeyError, TypeError, ValueError) as e:
            raise _invalid(where, f"{type(e).__name__}: {e}") from e
        if wrong := {k: v for k, v in found.encode().items() if fields.get(k, v) != v}:
            raise _invalid(where, f"values of another kind: {sorted(wrong)}")
        if found.length < 1:
            raise _invalid(where, f"rows of {found.length} tokens")
        return found


def _invalid(where: str, got: str) -> InvalidDatasetError:
    return InvalidDatasetError(
        "description of packed rows cannot be read",
        where=where,
        got=got,
        cure="restore dataset.json from a copy, or pack the documents again",
    )
