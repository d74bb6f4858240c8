"""The audit of conversations: the tokens that a template would train on."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import trained_counts
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import PackingOptions, usual_split
from gristmill.pipelines.text.printer import fact_lines, plural
from gristmill.pipelines.text.supervision import (
    BEGIN,
    END,
    Document,
    TemplatePiece,
    marked,
    piece_lines,
    role_lines,
    supervised_documents,
    supervision_facts,
    template_pieces,
    token_texts,
)
from gristmill.transforms.chat.conversation_reader import AsideError, ConversationReader
from gristmill.transforms.chat.template import with_template
from gristmill.transforms.conversion.begin import list_inputs
from gristmill.transforms.functions.user_functions import call, load_function
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.source import first_records
from gristmill.transforms.tokens.documents import Misfit, misfits
from gristmill.transforms.tokens.load_tokenizer import find_tokenizer, load_texts
from gristmill.transforms.tokens.tokenizer import Tokenizer

_BATCH = 64
_EXAMPLES = 3
_MOST_SHOWN = 4000


class SetAside(NamedTuple):
    """A conversation that cannot be used, or is too long.

    Attributes:
        reason: One of `gristmill.dataset.packed.counts.ASIDE`.
        place: Its place in the inputs.
        detail: Its fault.
    """

    reason: str
    place: str
    detail: str


class ShownConversation(NamedTuple):
    """A conversation as text, with marks around what is trained on."""

    place: str
    text: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """The result of packing the first conversations of some inputs.

    Attributes:
        source: The inputs.
        records: Number of records that were read.
        counts: The counts that `pack` would store.
        roles: The tokens of each role, as lines.
        unfit: The misfits for which `pack` would fail.
        set_aside: The conversations that would be set aside.
        shown: The first conversations.
        pieces: Pieces of the template, the most frequent first.
        texts: Shows tokens as text.
    """

    also_shown = ("template",)

    source: str
    records: int
    counts: PackedCounts
    roles: tuple[str, ...]
    unfit: tuple[Misfit, ...]
    set_aside: tuple[SetAside, ...]
    shown: tuple[ShownConversation, ...]
    pieces: tuple[TemplatePiece, ...] = dataclasses.field(repr=False)
    texts: Tokenizer = dataclasses.field(repr=False)

    def text(self) -> str:
        """Returns the audit for people."""
        counts = self.counts
        rendered = counts.tokens + counts.truncated_tokens
        aside = collections.defaultdict(list)
        for each in self.set_aside:
            aside[each.reason].append(f"{each.place}: {each.detail}")
        facts = {
            "rendered": f"{plural(rendered, 'token')} in "
            f"{plural(counts.documents, 'conversation')} = "
            f"{counts.trained_tokens:,} trained + "
            f"{counts.tokens - counts.trained_tokens:,} not trained + "
            f"{counts.truncated_tokens:,} truncated",
            "roles": [*self.roles],
            **supervision_facts(counts, named=True),
            "UNFIT": [f"{each.what}: {each.got}; {each.cure}" for each in self.unfit],
            **{reason: some[:_EXAMPLES] for reason, some in aside.items()},
            "template": piece_lines(self.pieces, self.texts),
        }
        head = f"{self.source}: the first {plural(self.records, 'record')}"
        lines = [head, *fact_lines(facts)]
        for place, text in self.shown:
            if len(text) > _MOST_SHOWN:
                text = f"{text[:_MOST_SHOWN]}... ({len(text):,} characters)"
            lines += ["", f"{place}, with what is trained on in {BEGIN} {END}:", text]
        return "\n".join(lines)

    @property
    def template(self) -> list[dict[str, Any]]:
        """The pieces of the template, as text."""
        return [
            {
                "text": self.texts.decode(piece.ids),
                "trained": piece.trained,
                "times": piece.times,
            }
            for piece in self.pieces
        ]


def audit_conversations(options: PackingOptions, *, records: int, shown: int) -> Audit:
    """Renders and tokenises the first conversations of inputs, and writes nothing.

    From a directory with splits it takes the split `train`, or else the first one.

    Args:
        options: The options of packing them.
        records: Maximum number of records to read.
        shown: Conversations to show as text.

    Raises:
        InputError: Inputs, tokenizer or template cannot be used, or there is no record.
        CorruptInputError: A file is damaged.
        StorageError: A file cannot be read.
        UserFunctionError: The user's function failed.
    """
    jobs = {job.split: job for job in conversion_of(options).jobs}
    job = jobs[usual_split(jobs)]
    files = list_inputs(job)
    pack = job.pack
    assert pack is not None  # These are options of packing.
    pack = with_template(dataclasses.replace(pack, found=find_tokenizer(pack)))
    assert pack.found is not None  # Just now.
    aside: list[SetAside] = []

    def tell(error: AsideError, place: str) -> None:
        aside.append(SetAside(error.reason, place, str(error)))

    reader = ConversationReader(pack, tell=tell)
    texts = load_texts(str(options.tokenizer))
    counts, read = PackedCounts(), 0
    found: list[Document] = []
    examples: list[ShownConversation] = []
    for count, given in _batches(job, files, records):
        read += count
        places = [place for _, place in given]
        documents = reader.read([record for record, _ in given], places.__getitem__)
        spans = documents.spans
        assert spans is not None  # They are conversations.
        counts += documents.counts + trained_counts(spans)
        counts += PackedCounts(pieces=documents.counts.documents)
        own = [*supervised_documents(documents.ids, documents.lengths, spans)]
        for place, (ids, facts) in zip(places, own, strict=True):
            if len(ids) and len(examples) < shown:
                plain = token_texts(texts, ids.tolist())
                text = marked(plain, facts["trained"], "")
                examples.append(ShownConversation(place, text))
        found += own
    if not read:
        raise InputError(
            "the inputs hold no records",
            where=" ".join(options.input),
            expected="conversations",
            cure="see whether they are whole",
        )
    special = pack.found.special_ids.values()
    return Audit(
        source=" ".join(options.input),
        records=read,
        counts=counts,
        roles=tuple(role_lines(found)),
        unfit=tuple(misfits(pack, counts)),
        set_aside=tuple(aside),
        pieces=tuple(template_pieces(found, special)),
        shown=tuple(examples),
        texts=texts,
    )


def _batches(
    job: ConversionJob, files: InputFiles, records: int
) -> Iterator[tuple[int, list[tuple[bytes, str]]]]:
    """Yields the number of records read, and the results with their places."""
    function = None if job.map is None else load_function(job.map)
    read = itertools.islice(first_records(files), records)
    for batch in iter(lambda: [*itertools.islice(read, _BATCH)], []):
        found = []
        for one in batch:
            place = f"{one.path}, {one.place_text}"
            results = [one.record]
            if function is not None:
                results = [*call(function, one.record, source=place)]
            found += [(record, place) for record in results]
        yield len(batch), found
