"""Builds the served model, in the service and in each of its workers alike."""

from collections.abc import Callable
from pathlib import Path

from archerfish.api.model import AnswerFormats, EmbeddingSizes, ServedModel
from archerfish.engine.input_processor import InputProcessor
from archerfish.server.preprocessing.protocol import ModelSpec
from archerfish.tokenizer import Tokenizer


def load_model(spec: ModelSpec, clock: Callable[[], float]) -> ServedModel:
    """Read the tokenizer and its chat template; everything else is in the specification."""
    facts, directory = spec.facts, spec.facts.tokenizer_directory
    tokenizer = None if directory is None else Tokenizer.load(Path(directory), spec.chat_template)
    processor = InputProcessor(
        tokenizer, facts.vocab_size, facts.max_model_len, clock, facts.max_positions, facts.speculation_methods
    )
    formats = AnswerFormats(spec.tool_call_format, spec.reasoning_parser)
    tool_format = formats.tool_format(facts.family, tokenizer)
    reasoning_format = formats.reasoning_format(tokenizer)
    embedding = EmbeddingSizes(facts.hidden_size, facts.embedding_sizes)
    return ServedModel(spec.names, processor, facts.recommended, tool_format, reasoning_format, embedding)
