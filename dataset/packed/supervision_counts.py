"""Counts of the supervision of conversations: tokens by role, and what is trained."""

from __future__ import annotations

import dataclasses

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

MADE = tuple(name for name in SUPERVISION if name not in IN_ROWS)
"""The names of the counts that only the making of conversations tells."""
