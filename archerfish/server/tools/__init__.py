"""Tool calling as text: what a request may ask for, what a model must write, and what it wrote. Knows no HTTP."""

from archerfish.server.tools.checks import ToolChoice, check_tools
from archerfish.server.tools.formats import FORMATS, ToolFormat, choose_format, find_format
from archerfish.server.tools.grammar import grammar_for
from archerfish.server.tools.messages import template_messages
from archerfish.server.tools.reader import (
    Answer,
    CallArguments,
    CallStart,
    Content,
    Delta,
    ToolCall,
    ToolCallReader,
    read_answer,
)

__all__ = [
    "FORMATS",
    "Answer",
    "CallArguments",
    "CallStart",
    "Content",
    "Delta",
    "ToolCall",
    "ToolCallReader",
    "ToolChoice",
    "ToolFormat",
    "check_tools",
    "choose_format",
    "find_format",
    "grammar_for",
    "read_answer",
    "template_messages",
]
