"""Tool calling as text: checks of tools, grammars of calls, and readers of calls."""

from archerfish.api.tools.formats import FORMATS, ToolFormat, choose_format, find_format
from archerfish.api.tools.functions import ToolChoicePolicy, check_tools
from archerfish.api.tools.grammar import grammar_for
from archerfish.api.tools.reader import ToolCallReader, read_answer

__all__ = [
    "FORMATS",
    "ToolCallReader",
    "ToolChoicePolicy",
    "ToolFormat",
    "check_tools",
    "choose_format",
    "find_format",
    "grammar_for",
    "read_answer",
]
