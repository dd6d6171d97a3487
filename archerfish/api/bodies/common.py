"""Fields that several endpoints share, and their conversion to sampling parameters."""

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from archerfish.api.unknown_fields import has_no_effect
from archerfish.errors import InvalidParameter
from archerfish.request import (
    LARGEST_PRIORITY,
    LARGEST_SLO_MS,
    MAX_DRAFT_TOKENS,
    SLO,
    SamplingParams,
    Speculation,
    Verification,
)

MOST_ANSWERS = 128
LONGEST_NAME = 1024
MOST_STOPS = 16
MOST_PROMPTS = 2048
MOST_LOGPROBS = 20
"""Likeliest tokens that log-probabilities are given of at each position."""

Text = Annotated[str, Field(max_length=10_000_000)]
Pattern = Annotated[str, Field(min_length=1)]
Label = Annotated[str, Field(max_length=LONGEST_NAME)]
"""A text that only names something."""
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Priority = Annotated[int, Field(ge=-LARGEST_PRIORITY, le=LARGEST_PRIORITY)]
CacheSalt = Annotated[str, Field(max_length=LONGEST_NAME)]
RequestId = Annotated[str, Field(min_length=1, max_length=128)]
User = Annotated[str, Field(max_length=256)]
Truncation = Annotated[int, Field(ge=-1)]
"""Number of tokens to which a prompt is truncated from the left; -1 is as many as the context allows."""
Prompts = Text | TokenIds | Annotated[list[Text | TokenIds], Field(min_length=1, max_length=MOST_PROMPTS)]
"""One prompt or several, each a text or token ids."""


def _check_num_logprobs(value: object) -> object:
    if isinstance(value, int) and not 0 <= value <= MOST_LOGPROBS:
        allowed = f"it must be from 0 to {MOST_LOGPROBS}; the log-probabilities of all tokens (-1) cannot be had"
        raise PydanticCustomError("num_logprobs", "{allowed}", {"allowed": allowed})
    return value


NumLogprobs = Annotated[int, Field(ge=0, le=MOST_LOGPROBS), BeforeValidator(_check_num_logprobs)]
"""Number of likeliest tokens at each position."""


def each_prompt(prompts: Prompts) -> list[str | list[int]]:
    """The prompts one by one."""
    if isinstance(prompts, str):
        return [prompts]
    # Of token ids all are numbers, else none is.
    return [prompts] if isinstance(prompts[0], int) else prompts


def _fail_fast(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            _fail_fast(part)


class Body(BaseModel):
    """Nothing is converted and nothing is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Lists are refused at the first wrong item: of a million wrong ones, all errors would be made otherwise."""
        schema = handler(source)
        _fail_fast(schema)
        return schema

    CONTENT: ClassVar[tuple[str, ...]] = ()
    """Fields that grow with what a client sends and are not needed once the prompt has been made from them."""

    def without_content(self) -> Self:
        """Return a copy without large fields, which every open request retains and sends between processes."""
        return self.model_copy(update=dict.fromkeys(self.CONTENT))


@cache
def _is_required_by_name(body: type[BaseModel]) -> dict[str, bool]:
    """Return whether each field must be given, by the name that clients know."""
    return {field.alias or name: field.is_required() for name, field in body.model_fields.items()}


class RequestBody(Body):
    """A whole body, or its options: null is the same as leaving a field out, and so is a neutral unsupported field."""

    @model_validator(mode="before")
    @classmethod
    def _without_idle_fields(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        is_required = _is_required_by_name(cls)
        return {
            name: value
            for name, value in given.items()
            if not (has_no_effect(name, value) if name not in is_required else value is None and not is_required[name])
        }


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
"""Labels of the client's own. The model never sees them."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class StreamOptions(RequestBody):
    include_usage: bool = False
    """Send the counts of tokens in a last event."""
    continuous_usage_stats: bool = False
    """Send the counts so far with each event, too."""


class SLOBody(Body):
    """Bounds that a request must meet to count as goodput."""

    ttft_ms: Annotated[float, Field(gt=0, le=LARGEST_SLO_MS)] | None = None
    tpot_ms: Annotated[float, Field(gt=0, le=LARGEST_SLO_MS)] | None = None


class SpeculationBody(Body):
    """Speculative decoding of a request; what is left out is as the service has it."""

    method: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Method that proposes, of those that the engine has; off proposes nothing."""
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] | None = None
    """Maximum draft length per sequence and step."""
    verification: Verification | None = None
    """Acceptance of draft tokens: coupled preserves the tokens, rejection their distribution; typical is lossy."""


class JsonSchema(Body):
    name: Annotated[str, Field(max_length=64)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextFormat(Body):
    type: Literal["text"]


class JsonObjectFormat(Body):
    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: JsonSchema


class RegexFormat(Body):
    type: Literal["regex"]
    regex: Pattern


class ChoiceFormat(Body):
    type: Literal["choice"]
    choice: Annotated[list[str], Field(min_length=1)]


class GrammarFormat(Body):
    type: Literal["grammar"]
    grammar: Pattern


class TagStructure(Body):
    begin: Pattern
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    end: str


class StructuralTagFormat(Body):
    """Free text in which each beginning of a structure is followed by JSON of its schema and by its end."""

    type: Literal["structural_tag"]
    structures: Annotated[list[TagStructure], Field(min_length=1)]
    triggers: Annotated[list[Pattern], Field(min_length=1)]
    """Texts that beginnings start with. Elsewhere they cannot be written."""


ResponseFormat = Annotated[
    TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | ChoiceFormat | GrammarFormat | StructuralTagFormat,
    Field(discriminator="type"),
]


class StructuredOutputs(RequestBody):
    """A grammar for the answer, as vLLM's clients write it. Exactly one of the first six fields is given."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    """A JSON schema, as an object or as text."""
    regex: Pattern | None = None
    choice: Annotated[list[str], Field(min_length=1)] | None = None
    grammar: Pattern | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    """structures and triggers, as an object or as text."""
    disable_any_whitespace: bool = False
    """Nothing to choose: JSON is always written on one line."""
    disable_additional_properties: bool = False
    """Objects of the JSON schema have the properties that it names, and no others."""


class GenerationBody(RequestBody):
    """Fields of generation that all endpoints share."""

    CONTENT: ClassVar[tuple[str, ...]] = (
        *("stop", "stop_token_ids", "logit_bias", "allowed_token_ids", "bad_words"),
        *("response_format", "structured_outputs"),
        *("guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    )

    model: Label | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: list[int] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    """Words that must not be written."""
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    """The same in vLLM's words; only one of these fields may be given."""
    guided_json: dict[str, Any] | str | None = None
    """Older words of vLLM for structured_outputs."""
    guided_regex: Pattern | None = None
    guided_choice: Annotated[list[str], Field(min_length=1)] | None = None
    guided_grammar: Pattern | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Priority = 0
    """Lower goes first."""
    cache_salt: CacheSalt = ""
    """Prefixes are shared only with requests of the same salt."""
    request_id: RequestId | None = None
    slo: SLOBody | None = None
    speculation: SpeculationBody | None = None
    metrics: bool = False
    """Tell in the answer how long each part took."""
    user: User | None = None
    """The end user, for the log line of the request."""

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def wants_continuous_usage(self) -> bool:
        """Whether each event has the counts of tokens so far."""
        return self.stream_options is not None and self.stream_options.continuous_usage_stats

    def sampling_params(self, recommended: Mapping[str, Any], **more: Any) -> SamplingParams:
        """Return the parameters that were sent over the recommended ones. `more` are those of the endpoint itself."""
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter("stream_options", {}, "they need stream = true")
        if self.wants_continuous_usage and not self.wants_usage:
            raise InvalidParameter("stream_options.continuous_usage_stats", True, "it needs include_usage = true")
        given = {name: getattr(self, name) for name in _SAMPLING if getattr(self, name) is not None}
        if self.speculation is not None:
            given["speculation"] = Speculation(**self.speculation.model_dump())
        more = {name: value for name, value in more.items() if value is not None}
        return SamplingParams.from_dict({**recommended, **given, **more})

    @property
    def max_tokens_name(self) -> str:
        """The field in which the client limited the answer."""
        return "max_tokens"

    @property
    def request_fields(self) -> dict[str, Any]:
        """Fields of EngineInputs that a body has under the same names."""
        return {
            "request_id": self.request_id,
            "priority": self.priority,
            "cache_salt": self.cache_salt,
            "slo": None if self.slo is None else SLO(ttft_ms=self.slo.ttft_ms, tpot_ms=self.slo.tpot_ms),
            "user": self.user,
        }


_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "n", "stop", "stop_token_ids", "seed", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids", "min_tokens", "ignore_eos"),
    *("include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens", "bad_words"),
)


class TaggedBody(GenerationBody):
    """Fields that only chat and completions share."""

    best_of: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] | None = None
    """Number of answers to write, of which the n with the highest mean log-probability of a token are returned."""
    prompt_logprobs: NumLogprobs | None = None
    """How likely each token of the prompt was, and so many likeliest ones at its place."""
    truncate_prompt_tokens: Truncation | None = None
    metadata: Metadata | None = None
    """Checked, and of no effect."""
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: Label | None = None
    """Not needed: shared prefixes are found by themselves."""
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    """Another name for user."""

    @model_validator(mode="after")
    def _whom_it_is_for(self) -> Self:
        self.user = self.user or self.safety_identifier
        return self

    def sampling_params(self, recommended: Mapping[str, Any], **more: Any) -> SamplingParams:
        if self.stream and (self.best_of or 1) > (self.n or 1):
            allowed = "the best is known at the end, so it cannot be combined with stream"
            raise InvalidParameter("best_of", self.best_of, allowed)
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidParameter("prompt_logprobs", self.prompt_logprobs, "they cannot be combined with stream")
        more = {"prompt_logprobs": self.prompt_logprobs, **more}
        return super().sampling_params(
            recommended, best_of=self.best_of, truncate_prompt_tokens=self.truncate_prompt_tokens, **more
        )
