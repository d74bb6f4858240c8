"""Files of tokenizers, made here: of published vocabularies, and trained ones."""

import base64
import functools
import io
import itertools
import json
import random

import sentencepiece
import tokenizers
import toktok
from tokenizers import decoders, models, pre_tokenizers, processors

# As it was published; it gives the same results as the one that is written for speed.
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
END = "<|endoftext|>"
TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "don't WON'T I'LL they've",
    "  blanks   before,\n\n\n lines \t\t and tabs  \r\n\r\n end  ",
    "Ünïcödé ÅNGSTRÖM Å ﬁ \u00a0 no break",
    "日本語のテキスト 12345678901 and 3.14159",
    "",
    "\x00\x01 control",
    "emoji 😀👩\u200d👩\u200d👧 end",
    f"text with {END} in it",
    "a" * 300,
    "def f(x):\n    return x ** 2  # CamelCase snake_case",
)


def published_ranks(name):
    """Returns the tokens of a published encoding by rank."""
    return toktok._encoding(name).token_byte_values()


def rank_file(ranks):
    """Returns a file of ranks."""
    lines = (
        b"%b %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(ranks)
    )
    return b"".join(lines)


@functools.cache
def published(name):
    """Returns the file of ranks of a published encoding, as it was published."""
    return rank_file(published_ranks(name))


@functools.cache
def _byte_pairs(count):
    """Returns the model of the first tokens of a published encoding."""
    ranks = published_ranks("cl100k_base")[:count]
    rank_of = {token: rank for rank, token in enumerate(ranks)}
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = itertools.count(256)
    # The letter that stands for each byte.
    letters = [chr(byte if byte in shown else next(others)) for byte in range(256)]

    def text(token):
        return "".join(letters[byte] for byte in token)

    pairs = (_pair(token, rank_of) for token in ranks if len(token) > 1)
    return models.BPE(
        vocab={text(token): rank for token, rank in rank_of.items()},
        merges=[(text(first), text(second)) for first, second in pairs],
    )


def _pair(token, rank_of):
    """Returns the two tokens that a token is made of when text is encoded."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        ranks = [
            rank_of.get(one + other, len(rank_of))
            for one, other in itertools.pairwise(parts)
        ]
        at = ranks.index(min(ranks))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def tokenizer_json(
    count=5_000, *, special=(END,), enclosed=False, digits=False, **fields
):
    """Returns a tokenizer.json with the first tokens of a published encoding.

    Args:
        count: How many.
        special: The special tokens after them.
        enclosed: Whether the first two of these begin and end every text.
        digits: Whether each digit is a token, which gigatoken does not know.
        fields: Others to set.
    """
    made = tokenizers.Tokenizer(_byte_pairs(count))
    made.add_special_tokens([*special])
    split = pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated")
    of_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    each_digit = [pre_tokenizers.Digits(individual_digits=True)] * digits
    made.pre_tokenizer = pre_tokenizers.Sequence([*each_digit, split, of_bytes])
    made.decoder = decoders.ByteLevel()
    if enclosed:
        begin, end = special
        made.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A {end}",
            special_tokens=[(name, made.token_to_id(name)) for name in special],
        )
    return json.dumps(json.loads(made.to_str()) | fields).encode()


@functools.cache
def sentence_piece_model(kind="bpe"):
    """Returns a small model of SentencePiece."""
    words = ("the", "tokens", "of", "a", "row", "documents", "are", "packed", "Ünï")
    rng = random.Random(7)
    lines = (" ".join(rng.choices(words, k=9)) for _ in range(400))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=lines,
        model_writer=model,
        vocab_size=330 if kind == "bpe" else 280,
        model_type=kind,
        byte_fallback=True,
        minloglevel=2,
        num_threads=1,
    )
    return model.getvalue()
