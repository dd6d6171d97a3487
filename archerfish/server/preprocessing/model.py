"""Makes what must be known of the served model, in the service and in each of its workers alike."""

from collections.abc import Callable
from pathlib import Path

from archerfish.api.model import EmbeddingSizes, ServedModel, usual_reasoning_format, usual_tool_format
from archerfish.api.reasoning import find_format as find_reasoning_format
from archerfish.api.tools import find_format
from archerfish.engine.intake import Intake
from archerfish.server.preprocessing.jobs import ModelSpec
from archerfish.tokenizer import Tokenizer


def load_model(spec: ModelSpec, clock: Callable[[], float]) -> ServedModel:
    """Read the tokenizer and its chat template; everything else is in the specification."""
    facts, directory = spec.facts, spec.facts.tokenizer_directory
    tokenizer = None if directory is None else Tokenizer.load(Path(directory), spec.chat_template)
    intake = Intake(
        tokenizer, facts.vocab_size, facts.max_model_len, clock, facts.max_positions, facts.guessing_methods
    )
    named = spec.tool_call_format
    tool_format = usual_tool_format(facts.family, tokenizer) if named is None else find_format(named)
    parser = spec.reasoning_parser
    reasoning_format = usual_reasoning_format(tokenizer) if parser is None else find_reasoning_format(parser)
    embedding = EmbeddingSizes(facts.hidden_size, facts.embedding_sizes)
    return ServedModel(spec.names, intake, facts.recommended, tool_format, reasoning_format, embedding)
