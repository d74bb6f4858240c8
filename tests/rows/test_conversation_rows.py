"""Rows of conversations as commands show them: counts, text with marks, messages."""

from __future__ import annotations

import collections
import json
import pathlib
import random

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.base.errors import FormatVersionError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import ROLES
from gristmill.pipelines.commands.main import cli
from gristmill.pipelines.text.supervision import BEGIN
from gristmill.pipelines.verify import verify
from tests.support.packed_shards import (
    Conversation,
    conversations,
    supervised_dataset,
)

LENGTH = 64
MADE = [conversations(30, seed=1), conversations(25, seed=2)]
TOLD = PackedCounts(
    aside_rejected=2,
    aside_long=1,
    special_texts=1,
    unknown_tokens=4,
    open_turns=3,
    truncated_documents=1,
    truncated_tokens=9,
)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("conversation_rows")
    return supervised_dataset(folder / "chat", MADE, length=LENGTH, told=TOLD)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tokenizer whose token n is the text `n.`, of the letters a to j."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {_word(number): number for number in range(320)}
    model = models.WordLevel(vocabulary, unk_token=_word(0))
    made = Tokenizer(model)
    made.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def _word(number: int) -> str:
    return "".join("abcdefghij"[int(digit)] for digit in str(number)) + "."


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def everyone() -> list[Conversation]:
    return [each for part in MADE for each in part]


def test_the_ledger_is_printed_and_adds_up(chat: str) -> None:
    text = run("inspect", chat)
    counts = collections.Counter(
        (ROLES[said.role] if said else "template", bool(said and said.trained))
        for each in everyone()
        for said in each.said
    )
    tokens = sum(counts.values())
    trained = counts["assistant", True]
    share = f"{100 * trained / tokens:.2f}"
    assert f"trained   {trained:,} of {tokens:,} tokens ({share} %)" in text
    assert "SET ASIDE 3 conversations: 2 that cannot be used" in text
    assert "4 tokens for text beyond the vocabulary" in text
    assert "1 text like a special token" in text
    assert "3 trained messages without an end of turn" in text
    assert "TRUNCATED 1 document by 9 tokens" in text
    packed = json.loads(run("inspect", chat, "--json"))["splits"]["train"]["packed"]
    assert packed["format"] == 2
    assert packed["trained_tokens"] == trained
    found = loader.open(chat).facts.packed
    assert found is not None
    assert found.trained_tokens == trained
    assert found.tokens == tokens


def test_verify_counts_it_again(chat: str, tmp_path: pathlib.Path) -> None:
    result = verify(chat, workers=1)
    assert not result.findings
    assert result.packed is not None
    told = loader.open(chat).facts.packed
    assert result.packed == told
    text = run("verify", chat)
    assert f"{told.trained_tokens:,} of {told.tokens:,} tokens" in text


@pytest.mark.slow
def test_trace_names_message_and_role(chat: str, tokenizer: str) -> None:
    opened = loader.open(chat)
    batches = loader.global_batches(opened, batch_size=4, seed=3)
    order = (chat, "--seed", 3, "--batch-size", 4)
    chance = random.Random(0)
    shards = {f"{number:05d}-of-00002": part for number, part in enumerate(MADE)}
    seen = set()
    for _ in range(60):
        step, row = chance.randrange(batches.steps or 1), chance.randrange(4)
        token = chance.randrange(LENGTH)
        place = batches.locate(step, row, token)
        if not place.pieces:
            continue
        (piece,) = place.pieces
        (made,) = [part for name, part in shards.items() if place.shard.endswith(name)]
        at = piece.first_token + token - piece.begin_token
        said = made[piece.document].said[at]
        expected = ("template", None, False, None)
        if said is not None:
            weight = 1.0 if said.trained else None
            expected = (ROLES[said.role], said.message, said.trained, weight)
        assert (piece.role, piece.message, piece.trained, piece.weight) == expected
        seen.add(piece.role)
        one = (*order, "--step", step, "--row", row, "--token", token)
        if len(seen) == 2 and piece.role != "template":
            text = run("trace", *one)
            trained = "trained" if said.trained else "not trained"
            line = f"token     {token}: {piece.role}, message {said.message}, {trained}"
            assert line in text
            fields = json.loads(run("trace", *one, "--json"))["pieces"][0]
            assert (fields["role"], fields["message"]) == (piece.role, piece.message)
            shown = run("trace", *one, "--show", "--tokenizer", tokenizer)
            assert BEGIN in shown
    assert seen >= {"template", "user", "assistant"}
    whole = json.loads(run("trace", *order, "--step", 0, "--row", 0, "--json"))
    assert "role" not in whole["pieces"][0]


def test_readers_of_another_format_refuse_the_rows(tmp_path: pathlib.Path) -> None:
    path = supervised_dataset(tmp_path / "rows", MADE[:1])
    fields = json.loads((tmp_path / "rows" / "dataset.json").read_text())
    packed_fields = fields["splits"]["train"]["packed"]
    # Readers before this one know format 1 alone.
    assert packed_fields["format"] == 2
    packed_fields["format"] = 3
    (tmp_path / "rows" / "dataset.json").write_text(json.dumps(fields))
    with pytest.raises(FormatVersionError, match="packed rows"):
        loader.PackedRows.of(loader.open(path))
