"""Tokenizers of SentencePiece: a `.model` file."""

from __future__ import annotations

from collections.abc import Sequence

import sentencepiece

from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Encoded,
    Tokenizer,
    end_to_end,
)


class SentencePieceTokenizer(Tokenizer):
    """A model of SentencePiece.

    Raises:
        ValueError: The library cannot read the file.
    """

    kind = "sentencepiece"

    def __init__(self, content: bytes, name: str, options: PackOptions) -> None:
        del name, options
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
        """Returns the bytes of a token."""
        if not 0 <= token < self.vocabulary_size:
            return None
        piece: str = self._model.id_to_piece(token)
        if self._model.is_byte(token):
            return bytes.fromhex(piece[3:-1])  # <0x0A>
        return piece.replace("\u2581", " ").encode()
