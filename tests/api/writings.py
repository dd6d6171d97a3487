"""Answers that come from a script instead of an engine."""

from collections.abc import Iterable, Sequence

from archerfish.api.model import ServedModel
from archerfish.engine.input_processor import EngineInputs
from archerfish.engine.outputs import OutputStream, StreamOutput
from archerfish.request import FinishReason, TokenEvent


def begun(model: ServedModel, inputs: EngineInputs) -> OutputStream:
    """Before its first token."""
    [request] = inputs.requests(0.0)
    return OutputStream(request, None, model.processor.tokenizer, lambda _request_id, _index: None)


def prompt_text(model: ServedModel, inputs: EngineInputs) -> str:
    """The text of a call's only prompt."""
    assert model.processor.tokenizer is not None
    [prompt] = inputs.prompts
    return model.processor.tokenizer.decode(prompt, skip_special_tokens=False)


def grown(
    writing: OutputStream, token_ids: Sequence[int], sizes: Iterable[int] = (), reason: FinishReason = FinishReason.STOP
) -> list[StreamOutput]:
    """The pieces of its first answer. Each second so many tokens come; the rest together, and then the end."""
    pieces, start, now = [], 0, 0.0
    for size in (*sizes, len(token_ids)):
        if start < len(token_ids):
            now += 1.0
            part = list(token_ids[start : start + size])
            pieces += writing.add_all([TokenEvent(writing.request.request_id, 0, part)], now)
            start += size
    end = [1] if reason is FinishReason.STOP else []
    return pieces + writing.add_all([TokenEvent(writing.request.request_id, 0, end, finish_reason=reason)], now + 1.0)
