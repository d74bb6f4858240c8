"""Files of tokenizers, made here: of published vocabularies, and trained ones."""

import base64
import functools
import io
import itertools
import json
import random

import sentencepiece
import toktok

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
    ranks = toktok._encoding(name).token_byte_values()
    return ranks


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
def _json_fields(tokens):
    ranks = published_ranks("cl100k_base")[:tokens]
    letters = _letters()

    def text(token):
        return "".join(letters[byte] for byte in token)

    rank_of = {token: rank for rank, token in enumerate(ranks)}
    merges = [[*map(text, _pair(token, rank_of))] for token in ranks if len(token) > 1]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(tokens, END)],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": PATTERN},
                    "behavior": "Isolated",
                    "invert": False,
                },
                byte_level,
            ],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text(token): rank for token, rank in rank_of.items()},
            "merges": merges,
        },
    }


def tokenizer_json(
    tokens=5_000,
    *,
    digits=False,
    template=(),
    **fields,
):
    """Returns a tokenizer.json with the first tokens of a published encoding.

    Args:
        tokens: How many; the token after them is `END`.
        digits: Whether each digit is a token, which gigatoken does not know.
        template: What the post-processor adds: `$A` is the text, others are tokens.
        fields: Others to set.
    """
    found = json.loads(json.dumps(_json_fields(tokens)))
    if digits:
        step = {"type": "Digits", "individual_digits": True}
        found["pre_tokenizer"]["pretokenizers"].insert(0, step)
    if template:
        names = [name for name in template if name != "$A"]
        ids = {
            name: tokens + number for number, name in enumerate(dict.fromkeys(names))
        }
        found["added_tokens"] = [
            added_token(number, name) for name, number in ids.items()
        ]
        single = [
            {"Sequence": {"id": "A", "type_id": 0}}
            if name == "$A"
            else {"SpecialToken": {"id": name, "type_id": 0}}
            for name in template
        ]
        found["post_processor"] = {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                name: {"id": name, "ids": [number], "tokens": [name]}
                for name, number in ids.items()
            },
        }
    return json.dumps(found | fields).encode()


def added_token(number, content):
    """Returns a special token of a tokenizer.json."""
    return {
        "id": number,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def _pair(token, rank_of):
    """Returns the two tokens that a token is made of when text is encoded."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        ranks = [
            (rank_of.get(one + other, len(rank_of)), at)
            for at, (one, other) in enumerate(itertools.pairwise(parts))
        ]
        _, at = min(ranks)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _letters():
    """Returns the letter that stands for each byte in a tokenizer.json."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = itertools.count(256)
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


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
