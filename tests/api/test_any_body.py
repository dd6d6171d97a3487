"""Whatever a client sends: a refusal that says so, or a call that cannot fail later for what is in the body."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from archerfish.api.endpoint_call import EndpointCall
from archerfish.api.endpoints import BODIES, HistoryNeeded, read_body
from archerfish.api.errors import ErrorReply
from archerfish.api.limits import JsonLimits
from archerfish.api.model import EmbeddingSizes, ServedModel, usual_tool_format
from archerfish.api.reasoning import FORMATS
from archerfish.api.responses import ResponsesCall
from archerfish.box import models_in_box
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.outputs import OutputStream
from archerfish.engine.wire import encode, read_to_engine
from archerfish.errors import RequestError
from archerfish.kvcache.tables import KVTables
from archerfish.request import FinishReason, Request, TokenEvent
from archerfish.scheduling.policy import ContinuousBatching
from archerfish.scheduling.scheduler import Limits, Scheduler
from archerfish.server.preprocessing.protocol import decode_outcome, encode_outcome
from archerfish.tokenizer import Tokenizer
from tests.lanes import examples

LIMITS = JsonLimits(10_000)
HI = {"role": "user", "content": "Hi"}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
BASE: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [HI], "tools": [{"type": "function", "function": FUNCTION}]},
    "/v1/completions": {"prompt": "Hi", "n": 2, "logprobs": 1},
    "/v1/embeddings": {"input": ["Hi", [5]]},
    "/v1/responses": {"input": [HI], "tools": [{"type": "function", **FUNCTION}], "metadata": {"a": "b"}},
    "/v1/messages": {"messages": [HI], "max_tokens": 5, "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
    "/v1/messages/count_tokens": {"messages": [HI], "system": "Be brief."},
    "/tokenize": {"messages": [HI]},
    "/detokenize": {"tokens": [5, 6]},
}

NUMBERS = st.one_of(
    st.integers(-3, 200),
    st.sampled_from([2**31 - 1, 2**31, -(2**31), 2**53, 2**63, 2**64, -(2**64), 10**400]),
    st.floats(allow_nan=True, allow_infinity=True),
)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["", "auto", "none", "json_object", "\0", "<|end|>", "f", "a{1000000000}", "self", "9" * 5000]),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@cache
def model(thinks: bool) -> ServedModel:
    tokenizer = Tokenizer.load(Path(models_in_box()["perch"]))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 0.0)
    tool_format = usual_tool_format("llama", tokenizer)
    return ServedModel(
        ("perch",), processor, {}, tool_format, FORMATS["think"] if thinks else None, EmbeddingSizes(8, None)
    )


@st.composite
def bodies(draw: st.DrawFn, endpoint: str) -> dict[str, Any]:
    """A body that is in order, but for some fields that may be anything, at any depth."""
    fields = BODIES[endpoint].body.model_fields
    names = [field.alias or name for name, field in fields.items()]
    body: dict[str, Any] = json.loads(json.dumps(BASE[endpoint]))
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
        body[name] = draw(VALUES)
    if draw(st.booleans()):
        _change_within(draw, body)
    return body


def _change_within(draw: st.DrawFn, value: Any) -> None:
    """Put anything somewhere inside."""
    while isinstance(value, (dict, list)) and value:
        key = draw(st.sampled_from(sorted(value))) if isinstance(value, dict) else draw(st.integers(0, len(value) - 1))
        if not isinstance(value[key], (dict, list)) or not value[key] or draw(st.booleans()):
            value[key] = draw(VALUES)
            return
        value = value[key]


def written(body: object) -> bytes:
    """As JSON, with numbers that become infinite when they are read."""
    return json.dumps(body).replace("Infinity", "1e999").encode()


def play(endpoint: str, body: object, thinks: bool) -> None:
    served = model(thinks)
    outcome = read_body(served, endpoint, written(body), LIMITS, ())
    if isinstance(outcome, ErrorReply):
        assert 400 <= outcome.status < 500, outcome
        msgspec.json.encode(outcome.body)
        return
    if isinstance(outcome, (bytes, HistoryNeeded)):
        return
    call: EndpointCall = decode_outcome(encode_outcome(outcome), served)
    try:
        served.processor.check_grammar(call.inputs.params.structured)
        requests = call.inputs.requests(0.0, "given")
    except RequestError:
        return  # Told as a 400, too.
    scheduler = Scheduler(
        Limits(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=1024),
        KVTables(64, 16, (None,), step_tokens=64, prefix_caching=True),
        ContinuousBatching(),
    )
    writings = []
    for request, text in zip(requests, call.inputs.prompt_texts, strict=True):
        scheduler.add(submitted(request))
        writings.append(OutputStream(request, text, served.processor.tokenizer, lambda _request_id, _index: None))
    for one in told(call, writings):
        msgspec.json.encode(one)


def submitted(request: Request) -> Request:
    """What the engine's process gets."""
    message = read_to_engine(encode(request))
    assert isinstance(message, Request) and message == request
    return message


def told(call: EndpointCall, writings: list[OutputStream]) -> Iterator[object]:
    """Everything that is told of answers that end before their first token."""
    pieces = []
    for place, writing in enumerate(writings):
        for index in range(writing.request.params.n):
            end = TokenEvent(writing.request.request_id, index, [], finish_reason=FinishReason.LENGTH)
            end = end._replace(
                prompt_logprobs=[], prompt_embedding=[1.0] * 8 if writing.request.params.prompt_embedding else None
            )
            pieces += [(place, piece) for piece in writing.add_all([end], 1.0)]
    if call.is_streamed:
        yield from call.begin(writings)
        for place, piece in pieces:
            yield from call.add(place, piece)
        yield from call.end()
        return
    if writings[0].request.params.prompt_logprobs is None:
        yield call.reply(writings)
    if isinstance(call, ResponsesCall):
        yield msgspec.json.decode(call.added)


@pytest.mark.parametrize("endpoint", BASE)
def test_the_body_that_is_changed_is_in_order(endpoint: str) -> None:
    for thinks in (False, True):
        assert not isinstance(read_body(model(thinks), endpoint, written(BASE[endpoint]), LIMITS, ()), ErrorReply)
        play(endpoint, BASE[endpoint], thinks)


@pytest.mark.parametrize("endpoint", BASE)
@examples(200, suppress_health_check=list(HealthCheck))
@given(data=st.data(), thinks=st.booleans())
def test_any_value_in_any_field(endpoint: str, data: st.DataObject, thinks: bool) -> None:
    play(endpoint, data.draw(bodies(endpoint)), thinks)


@examples(100)
@given(endpoint=st.sampled_from(sorted(BASE)), body=VALUES)
@example(endpoint="/v1/completions", body=[])
def test_any_value_as_the_whole_body(endpoint: str, body: object) -> None:
    play(endpoint, body, thinks=False)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("/v1/chat/completions", {"chat_template_kwargs": {"self": 1}}),
        ("/v1/chat/completions", {"chat_template_kwargs": {"messages": 1}}),
        ("/v1/chat/completions", {"logit_bias": {"9" * 5000: 1}}),
        ("/v1/chat/completions", {"slo": {"ttft_ms": float("inf")}}),
        ("/v1/chat/completions", {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]}),
        ("/v1/responses", {"tools": [{"type": "function", "name": "f", "parameters": {"maximum": 10**400}}]}),
        ("/v1/responses", {"tools": [{"type": "function", "name": "f", "parameters": {"maximum": float("inf")}}]}),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"maximum": 2**70}}}}),
        ("/v1/chat/completions", {"guided_json": {"maximum": float("inf")}}),
        ("/v1/completions", {"guided_regex": ""}),
        ("/v1/messages", {"priority": 2**64}),
        ("/v1/embeddings", {"dimensions": 2**64}),
    ],
)
def test_values_that_once_broke_something(endpoint: str, fields: dict[str, Any]) -> None:
    play(endpoint, {**BASE[endpoint], **fields}, thinks=False)
