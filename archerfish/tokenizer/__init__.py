"""Text to tokens and back: tokenizer.json, chat templates and incremental detokenizing. Knows nothing of the engine."""

from archerfish.tokenizer.detokenizer import Detokenizer, Piece
from archerfish.tokenizer.tokenizer import Tokenizer

__all__ = ["Detokenizer", "Piece", "Tokenizer"]
