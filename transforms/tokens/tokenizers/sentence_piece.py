"""Tokenizers of SentencePiece: a `.model` file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sentencepiece

from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Encoded,
    Ends,
    Tokenizer,
    end_to_end,
)


class SentencePieceTokenizer:
    """A model of SentencePiece; see `Tokenizer`.

    Raises:
        ValueError: The library cannot read the file.
    """

    own_ends = Ends()

    def __init__(self, content: bytes) -> None:
        try:
            self._model = sentencepiece.SentencePieceProcessor(model_proto=content)
        except Exception as e:  # The library has no error classes of its own.
            raise ValueError(str(e)) from e
        self.library = f"sentencepiece {sentencepiece.__version__}"
        model = self._model
        self.vocabulary_size = len(model)
        self.unknown_id: int | None = model.unk_id()
        self.special_ids: Mapping[str, int] = {
            model.id_to_piece(number): number
            for number in range(len(model))
            if model.is_control(number) or model.is_unknown(number)
        }

    def encode(self, texts: Sequence[bytes]) -> Encoded:
        """Returns the tokens of texts."""
        decoded = [text.decode() for text in texts]
        return end_to_end(self._model.encode(decoded, out_type=int, num_threads=1))

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token's text."""
        # For a missing token it returns that of the unknown one.
        number: int = self._model.piece_to_id(token)
        return number if self._model.id_to_piece(number) == token else None

    def bytes_of(self, token: int) -> bytes | None:
        """Returns the bytes of a token; see `TokenBytes`."""
        if not 0 <= token < self.vocabulary_size:
            return None
        piece: str = self._model.id_to_piece(token)
        if self._model.is_byte(token):
            return bytes.fromhex(piece[3:-1])  # <0x0A>
        return piece.replace("\u2581", " ").encode()


def make(content: bytes, name: str, **options: object) -> Tokenizer:
    """Returns the tokenizer of a file."""
    del name, options
    return SentencePieceTokenizer(content)
