"""The tokenizers of each library, one class each, which imports the library."""

from __future__ import annotations

import array
import functools
import importlib.metadata
import inspect
import itertools
import json
import operator
import os
import re
import reprlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError, UserFunctionError
from gristmill.transforms.functions.user_functions import load_function
from gristmill.transforms.tokens.tokenizer import (
    Encoded,
    Ends,
    IdArray,
    LengthArray,
    SpecialTexts,
    Tokenizer,
    end_to_end,
    find_encoding,
)

if TYPE_CHECKING:
    import tokenizers

# Characters encoded at once: the library's result takes about a hundred bytes a token.
_GROUP_CHARS = 256 << 10


class HuggingFaceTokenizer(Tokenizer):
    """A `tokenizer.json`.

    Its limits of length and its padding are switched off: they are for models, and
    would silently cut off texts.

    Raises:
        InputError: It draws tokens at random.
        ValueError: The library cannot read the file.
    """

    kind = "huggingface"
    knows_places = True

    def __init__(self, content: bytes, name: str) -> None:
        import tokenizers

        # The library reads this before each batch. Worker processes use all cores
        # already.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        self._content = content
        self._tokenizer = _parsed(content)
        self.library = f"tokenizers {tokenizers.__version__}"
        # Only models of BPE have it.
        if dropout := getattr(self._tokenizer.model, "dropout", None):
            raise InputError(
                "the tokenizer draws tokens at random: each run would give other rows",
                where=name,
                expected='"dropout": null in its "model"',
                got=f"{dropout:g}",
                cure="set it to null in a copy of the file",
            )
        ids = self._tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary_size = max(ids, default=-1) + 1
        self._added = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = {
            token.content: number
            for number, token in self._added.items()
            if token.special
        }
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self.unknown_id = None if unknown is None else self.id_of(unknown)

    def own_ends(self) -> Ends:
        """Returns the tokens that the post-processor adds to every text."""
        found = self._tokenizer.encode("a")
        mask = found.special_tokens_mask
        if not any(mask):
            raise InputError(
                "--add-special-tokens has no effect: the tokenizer adds none",
                expected="a tokenizer.json with a post-processor that adds some",
                cure="leave it out, or name the tokens with --bos and --eos",
            )
        before = len(list(itertools.takewhile(bool, mask)))
        after = sum(mask) - before
        return Ends(tuple(found.ids[:before]), tuple(found.ids[len(mask) - after :]))

    def ids_of(self, texts: list[str], *, as_text: bool) -> Iterator[npt.ArrayLike]:
        """Yields the ids of each text."""
        self._tokenizer.encode_special_tokens = as_text
        encode = self._tokenizer.encode_batch_fast
        for group in _groups(texts):
            for encoding in encode(group, add_special_tokens=False):
                # Takes a fifth of the time of making a numpy array from a list.
                yield array.array("I", encoding.ids)

    @functools.cached_property
    def _with_whole_offsets(self) -> tokenizers.Tokenizer:
        """The tokenizer without the step that takes white space out of offsets."""
        fields = json.loads(self._content) | {"post_processor": None}
        return _parsed(json.dumps(fields).encode())

    def library_begins(self, text: bytes, ids: IdArray) -> LengthArray:
        """Returns the starts of the tokens of a text."""
        decoded = text.decode()
        found = self._with_whole_offsets.encode(decoded, add_special_tokens=False)
        # Bytes at which characters begin, and the end.
        data = np.frombuffer(text, np.uint8)
        starts = np.append(np.flatnonzero(data & 0xC0 != 0x80), len(data))
        begins = starts[np.array([begin for begin, _ in found.offsets], np.int64)]
        if found.ids != ids.tolist() or (np.diff(begins, prepend=0) < 0).any():
            return super().library_begins(text, ids)
        return begins

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text."""
        return self._tokenizer.token_to_id(token)

    @functools.cached_property
    def _is_byte_level(self) -> bool:
        """Whether the letters of its tokens stand for bytes."""
        parts = self._tokenizer.decoder, self._tokenizer.pre_tokenizer
        # Their states are JSON, in whose texts a quotation mark is escaped.
        return any(b'"ByteLevel"' in part.__getstate__() for part in parts if part)

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None or token in self._added:
            return None if piece is None else piece.encode()
        if self._is_byte_level and all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        if _BYTE.fullmatch(piece):
            return bytes.fromhex(piece[3:-1])
        return piece.replace("\u2581", " ").encode()


def _parsed(content: bytes) -> tokenizers.Tokenizer:
    import tokenizers

    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
    except Exception as e:  # The library raises this class itself.
        raise ValueError(str(e)) from e
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _byte_of_letters() -> dict[str, int]:
    """Returns the byte that each letter of a byte-level vocabulary stands for.

    Printable ones stand for themselves, and the others follow from U+0100 on. Source:
    `bytes_to_unicode` in https://github.com/openai/gpt-2/blob/master/src/encoder.py.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_BYTES = _byte_of_letters()
_BYTE = re.compile("<0x[0-9A-F]{2}>")  # For models with byte_fallback.


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    group: list[str] = []
    chars = 0
    for text in texts:
        group.append(text)
        chars += len(text)
        if chars >= _GROUP_CHARS:
            yield group
            group, chars = [], 0
    yield group


class SentencePieceTokenizer(Tokenizer):
    """A model of SentencePiece.

    Raises:
        ValueError: The library cannot read the file.
    """

    kind = "sentencepiece"

    def __init__(self, content: bytes, name: str) -> None:
        import sentencepiece

        del name
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=content)
        except Exception as e:  # The library has no error classes of its own.
            raise ValueError(str(e)) from e
        self.library = f"sentencepiece {sentencepiece.__version__}"
        model = self._model
        self.vocabulary_size = len(model)
        self.unknown_id = model.unk_id()
        self.special_ids = {
            model.id_to_piece(number): number
            for number in range(len(model))
            if model.is_control(number) or model.is_unknown(number)
        }

    def ids_of(self, texts: list[str], *, as_text: bool) -> list[list[int]]:
        """Returns the ids of each text."""
        del as_text
        ids: list[list[int]] = self._model.encode(texts, out_type=int, num_threads=1)
        return ids

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text."""
        # For a missing token it returns that of the unknown one.
        number: int = self._model.piece_to_id(token)
        return number if self._model.id_to_piece(number) == token else None

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token."""
        if not 0 <= token < self.vocabulary_size:
            return None
        piece: str = self._model.id_to_piece(token)
        if self._model.is_byte(token):
            return bytes.fromhex(piece[3:-1])  # <0x0A>
        return piece.replace("\u2581", " ").encode()


class FunctionTokenizer(Tokenizer):
    """A function of a list of texts, which returns a sequence of ids for each.

    Its attribute `vocabulary_size` is the upper bound of ids; the optional
    `special_ids` has its special tokens. A class is called once, without arguments, and
    must return the function.

    Raises:
        InputError: There is no such function, or it lacks an attribute.
    """

    kind = "function"

    def __init__(self, content: bytes, name: str) -> None:
        del content
        function: Any = load_function(name)
        if inspect.isclass(function):
            try:
                function = function()
            except Exception as e:  # The user's code can raise anything.
                raise InputError(
                    "the class of the tokenizer cannot be used",
                    where=name,
                    expected="one that is called without arguments",
                    got=f"{type(e).__name__}: {e}",
                    cure="fix it",
                ) from e
        self.library, self._function = name, function
        given: Any = getattr(function, "vocabulary_size", None)
        try:
            size = operator.index(given)
        except TypeError:
            size = 0
        if not 0 < size <= 1 << 32:
            raise InputError(
                "the function of the tokenizer does not say how large its vocabulary "
                "is",
                where=name,
                expected="an attribute vocabulary_size: ids are below it",
                got=repr(given),
                cure=f"add a line: {name.rpartition(':')[2]}.vocabulary_size = 50257",
            )
        self.vocabulary_size = size
        self.special_ids = _special_ids(function, size, name)

    def ids_of(self, texts: list[str], *, as_text: bool) -> list[npt.NDArray[Any]]:
        """Returns the ids of each text."""
        del as_text
        found = self._function(texts)
        try:
            arrays = [np.asarray(ids) for ids in found]
        except (TypeError, ValueError) as e:
            raise self._wrong(f"{type(e).__name__}: {e}") from e
        if len(arrays) != len(texts):
            raise self._wrong(f"{len(arrays):,} sequences")
        for ids in arrays:
            if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "ui"):
                raise self._wrong(f"{ids.dtype} of shape {ids.shape}")
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < 1 << 32:
                raise self._wrong(f"ids from {ids.min()} to {ids.max()}")
        return arrays

    def _wrong(self, got: str) -> UserFunctionError:
        return UserFunctionError(
            "the function of the tokenizer returned values that are not tokens",
            where=self.library,
            expected="a sequence of ids, from 0 on, for each text of the list",
            got=got,
            cure="fix the function",
        )

    def id_of(self, token: str) -> int | None:
        """Returns the id of a special token's text."""
        return self.special_ids.get(token)


def _special_ids(function: Any, size: int, name: str) -> Mapping[str, int]:
    """Returns the special tokens of a function by their text.

    Raises:
        InputError: One is not in its vocabulary: rows could not hold it.
    """
    given = getattr(function, "special_ids", {})
    try:
        found = {str(text): operator.index(number) for text, number in given.items()}
    except (AttributeError, TypeError):
        found = {"": -1}
    if any(not 0 <= number < size for number in found.values()):
        raise InputError(
            "special_ids of the tokenizer's function are not in its vocabulary",
            where=name,
            expected=f"the ids of tokens by their text, below {size:,}",
            got=reprlib.repr(given),
            cure="correct them, or make vocabulary_size greater than all ids",
        )
    return found


class GigatokenEncoder:
    """The fast path of a tokenizer: gigatoken, which reads the same files.

    Texts with special tokens that the two treat differently are left to the tokenizer.

    Args:
        content: The file of the tokenizer.
        tokenizer: The tokenizer.
        as_text: Whether the text of a special token stays text.

    Attributes:
        library: The library, and its version.

    Raises:
        InputError: There is no fast path for it.
    """

    def __init__(self, content: bytes, tokenizer: Tokenizer, as_text: bool) -> None:
        self._tokenizer, self._as_text = tokenizer, as_text
        try:
            self._backend = _backend(tokenizer.kind, content, tokenizer.name)
        except ModuleNotFoundError:
            raise
        except Exception as e:  # The library raises RuntimeError and others.
            lines = str(e).split("\n")
            raise InputError(
                "there is no fast path for this tokenizer",
                where=tokenizer.name,
                expected="one that gigatoken can do",
                got=lines[0] or type(e).__name__,
                cure="leave out --fast",
            ) from e
        # For these files, gigatoken makes special tokens from such text.
        makes_tokens = tokenizer.kind in ("huggingface", "sentencepiece")
        differs = makes_tokens == as_text
        self._special = SpecialTexts(tokenizer.special_ids if differs else ())
        self.library = f"gigatoken {importlib.metadata.version('gigatoken')}"

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts, as `Tokenizer.encode` does."""
        # One call per text is as fast as a batch, runs on this thread, and does not
        # import `awkward`, which takes a tenth of a second in every worker.
        return end_to_end(map(self._ids, texts))

    def _ids(self, text: bytes) -> IdArray:
        if self._special.count(text):
            return self._tokenizer.encode([text], as_text=self._as_text).ids
        found: IdArray = self._backend.encode(text)
        return found


def _backend(kind: str, content: bytes, name: str) -> Any:
    import gigatoken

    if kind == "huggingface":
        # gigatoken reads this field, but ignores it.
        for token in json.loads(content).get("added_tokens") or ():
            if token.get("single_word"):
                raise ValueError(f"the token {token['content']!r} of single_word")
        return gigatoken.Tokenizer.from_json(content)
    if kind == "sentencepiece":
        return gigatoken.Tokenizer.from_sentencepiece(content)
    if kind != "tiktoken":
        raise ValueError(f"a tokenizer of kind {kind}")
    encoding = find_encoding(content, name)
    if not encoding.fast:
        raise ValueError(f"the encoding {encoding.name}")
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "ranks.tiktoken")
        with open(path, "wb") as file:
            file.write(content)
        # Without special tokens: a lookalike in a text is text.
        return gigatoken.Tokenizer.from_tiktoken(path, encoding.fast, {})
