"""The result of a removal, as the command shows it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gristmill.dataset.metadata.splits import Split
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.transforms.removal.commit_removal import RemovalResult

_SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Removed:
    """What a removal did.

    Attributes:
        dataset: Directory of the dataset.
        result: What was done.
        missing: Lines that named nothing.
        erased: Whether the state before was deleted.
    """

    dataset: str
    result: RemovalResult
    missing: tuple[str, ...] = ()
    erased: bool = False

    @property
    def split(self) -> Split:
        """The split as it is now."""
        return self.result.manifest.splits[self.result.split]

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Where the records can still be, which gristmill does not reach."""
        inputs = {
            str(path)
            for part in self.split.parts
            for path in part.source.get("inputs", ())
        }
        return (
            f"the inputs: {', '.join(sorted(inputs)) or 'not known'}",
            "copies and caches of this dataset on hosts that have read it, and "
            "datasets that were made of it",
            *(
                ("deleted objects that the bucket keeps: soft delete, versions",)
                if "://" in self.dataset
                else ("snapshots and backups of the file system",)
            ),
        )

    def text(self) -> str:
        """Returns the result for a person."""
        result, split = self.result, self.split
        name = f"{result.manifest.name}/{result.split}"
        if not result.editions:
            these, left = "records", f"{split.records:,} left"
            if split.packed is not None:
                these, left = "documents", f"{plural(split.records, 'row')} as before"
            line = f"{name}: these {these} were removed before; {left}"
            lines = [line]
        else:
            numbers = " and ".join(map(str, result.editions))
            word = "edition" if len(result.editions) == 1 else "editions"
            shards = plural(result.cut_shards, "shard")
            lost = f"{plural(result.records, 'record')} removed, {split.records:,} left"
            size = size_text(result.raw_bytes)
            if split.packed is not None:
                lost = (
                    f"{plural(result.documents, 'document')} removed, in "
                    f"{plural(split.records, 'row')} as before"
                )
                size = f"{plural(result.tokens, 'token')}, padding now"
            lines = [
                f"{name}: {lost}, committed as {word} {numbers}",
                f"  removed      {size}; listed in "
                + ", ".join(
                    str(part.removed["list"])
                    for part in split.parts
                    if part.removed and part.edition in result.editions
                ),
                f"  written      {shards} again; {result.shared_shards:,} are shared "
                "with the edition before",
                f"  digest       {split.records_digest}",
            ]
        if self.missing:
            shown = self.missing[:_SHOWN]
            more = len(self.missing) - len(shown)
            lines.append(f"  not found    {plural(len(self.missing), 'line')}:")
            lines += [f"    {line}" for line in shown]
            lines += [f"    and {more:,} more"] * bool(more)
        if self.erased:
            lines.append("  erased       the editions before, with their files")
            lines += [f"  NOT erased   {place}" for place in self.elsewhere]
        elif split.replaced:
            what = "records" if split.packed is None else "documents"
            kept = f"the edition before; --erase deletes it, with the {what}"
            lines.append(f"  kept         {kept}")
        return "\n".join(lines)

    def json(self) -> str:
        """Returns the result as one JSON object."""
        result, split = self.result, self.split
        fields: dict[str, Any] = {
            "dataset": self.dataset,
            "split": result.split,
            "editions": list(result.editions),
            "removed_records": result.records,
            "removed_bytes": result.raw_bytes,
            "removed_documents": result.documents,
            "removed_tokens": result.tokens,
            "records": split.records,
            "records_digest": split.records_digest,
            "cut_shards": result.cut_shards,
            "shared_shards": result.shared_shards,
            "not_found": list(self.missing),
            "erased": self.erased,
            "elsewhere": list(self.elsewhere) if self.erased else [],
        }
        return json.dumps(fields, ensure_ascii=False)
