"""Text to tokens and back: tokenizer.json, chat templates and incremental detokenizing."""

from archerfish.tokenizer.detokenizer import Detokenizer, Piece
from archerfish.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Piece", "Tokenizer"]
