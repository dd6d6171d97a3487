"""Reasoning as text: how models mark it, and how it is read."""

from archerfish.api.reasoning.formats import FORMATS, ReasoningFormat, choose_format, find_format
from archerfish.api.reasoning.reader import ReasoningReader
from archerfish.api.reasoning.thinking import ReasoningState

__all__ = ["FORMATS", "ReasoningFormat", "ReasoningReader", "ReasoningState", "choose_format", "find_format"]
