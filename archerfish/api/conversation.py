"""A conversation on its way to the engine: messages, tools and a wanted form become a prompt, and answers are read.

Every endpoint that answers conversations comes through here, with messages and tools in the words of the chat API.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from archerfish.api.answer_grammar import ReasoningPrefix, constraint
from archerfish.api.answers import AnswerReader, ReaderWithoutSpecialTexts, SpecialTexts
from archerfish.api.bodies.common import GenerationBody
from archerfish.api.model import ServedModel
from archerfish.api.reasoning import ReasoningState, tag_ids
from archerfish.api.tool_use import ToolUse
from archerfish.engine.input_processor import EngineInputs
from archerfish.engine.outputs import OutputStream
from archerfish.errors import InvalidParameter
from archerfish.request import SamplingParams, Structured
from archerfish.tokenizer import Tokenizer


class ReasoningOptions(NamedTuple):
    """How much the model should reason before it answers. None leaves the model's default."""

    field: str = "reasoning_effort"
    """Where the body says so, for errors."""
    effort: str | None = None
    """A word of OpenAI's API; "none" is not at all."""
    max_tokens: int | None = None
    max_tokens_field: str = "thinking_token_budget"


class Conversation:
    """The messages of a chat, and the rules for its next answer."""

    def __init__(
        self,
        model: ServedModel,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: object = None,
        parallel: bool = True,
        structured: Structured | None = None,
        template: Mapping[str, Any] | None = None,
        thinking: ReasoningOptions | None = None,
    ) -> None:
        """`template` are variables of the chat template. Raises what is wrong with any of it."""
        self._model = model
        self._tools = ToolUse.of(model, tools, tool_choice, parallel=parallel, has_grammar=structured is not None)
        wish = thinking or ReasoningOptions()
        variables = {**_effort_variables(model, wish), **(template or {})}
        prepared = _in_known_roles(model, template_messages(messages))
        self.prompt = model.processor.chat_text(prepared, tools=self._tools.shown, **variables)
        continued = _text_of(messages[-1]) if variables.get("continue_final_message") else None
        reasoning_format = model.reasoning_format
        self._thinking = (
            None if reasoning_format is None else ReasoningState.of(reasoning_format, self.prompt, continued)
        )
        self._constraint = constraint(self._tools, structured, self._thought(wish))

    def __getstate__(self) -> dict[str, Any]:
        """Return what reading answers needs; the prompt is not needed any more."""
        return {**self.__dict__, "prompt": "", "_tools": self._tools.without_descriptions(), "_constraint": None}

    @property
    def may_call(self) -> bool:
        return self._tools.shown is not None

    @property
    def may_think(self) -> bool:
        return self._thinking is not None and self._thinking.opening != "closed"

    @property
    def names_function(self) -> bool:
        """Whether one function was named, to be called once."""
        return self._tools.names_function

    def params(self, body: GenerationBody, **more: Any) -> SamplingParams:
        """Return the sampling parameters. `more` are those of the endpoint itself; None means not given."""
        return body.sampling_params(
            {"max_tokens": None, **self._model.recommended},
            structured=self._constraint,
            skip_special_tokens=False if self._reads_special_tokens else None,
            **more,
        )

    def inputs(self, body: GenerationBody, params: SamplingParams, *, add_special_tokens: bool = False) -> EngineInputs:
        """Return everything that the engine needs to answer. Rendered templates have their special tokens already."""
        try:
            return self._model.processor.inputs(
                [self.prompt], params, add_special_tokens=add_special_tokens, **body.request_fields
            )
        except InvalidParameter as error:
            raise (error.renamed(body.max_tokens_name) if error.name == "max_tokens" else error) from None

    def reader(self, body: GenerationBody) -> AnswerReader:
        """Return a reader for one answer."""
        reader = self._tools.new_reader()
        if self._thinking is not None:
            reader = self._thinking.reader(reader)
        # They are in the text for the reader alone, unless the client wants to see them, too.
        if self._reads_special_tokens and body.skip_special_tokens is not False:
            reader = ReaderWithoutSpecialTexts(reader, SpecialTexts.of(self._tokenizer))
        return reader

    def measure(self, output: OutputStream) -> int | None:
        """Return the number of reasoning tokens in all answers; None if the model shows no reasoning.

        The end of the reasoning is recorded in the request's times.
        """
        if self._thinking is None:
            return None
        answers = output.result.outputs
        counts = [self._thinking.num_tokens(answer.token_ids, self._tokenizer) for answer in answers]
        times = [output.time_after(index, count) for index, count in enumerate(counts)]
        output.result.metrics.first_visible_time = min((time for time in times if time is not None), default=None)
        return sum(counts)

    @property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = self._model.processor.tokenizer
        assert tokenizer is not None, "a chat was laid out with it"
        return tokenizer

    @property
    def _reads_special_tokens(self) -> bool:
        if self._tools.reads_special_tokens:
            return True
        return self._thinking is not None and tag_ids(self._thinking.format, self._tokenizer).are_special

    def _thought(self, wish: ReasoningOptions) -> ReasoningPrefix | None:
        """The reasoning that a grammar of the answer must leave free."""
        thinking, limit = self._thinking, wish.max_tokens
        if thinking is None:
            if limit is not None:
                raise InvalidParameter(wish.max_tokens_field, limit, "this model shows no reasoning; leave it out")
            return None
        tags = tag_ids(thinking.format, self._tokenizer)
        if limit is not None and None in (tags.start, tags.end):
            allowed = "this model's reasoning tags are not single tokens, so reasoning cannot be limited; leave it out"
            raise InvalidParameter(wish.max_tokens_field, limit, allowed)
        if thinking.opening == "closed":
            return None
        return ReasoningPrefix(thinking.format.start, thinking.format.end, tags, thinking.opening == "open", limit)


def _effort_variables(model: ServedModel, wish: ReasoningOptions) -> dict[str, Any]:
    """Return the chat template's variables for the reasoning effort."""
    template = _template_text(model)
    if wish.effort is None:
        # Who limits the reasoning wants some.
        return {"enable_thinking": True} if wish.max_tokens is not None and "enable_thinking" in template else {}
    variables: dict[str, Any] = {}
    if "reasoning_effort" in template:
        variables["reasoning_effort"] = wish.effort
    if "enable_thinking" in template:
        variables["enable_thinking"] = wish.effort != "none"
    if not variables and (wish.effort != "none" or model.reasoning_format is not None):
        allowed = "this model's chat template has no setting for the reasoning effort; leave it out"
        raise InvalidParameter(wish.field, wish.effort, allowed)
    return variables


def _in_known_roles(model: ServedModel, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developers speak as the system to models that were made before there were any."""
    if "developer" in _template_text(model):
        return messages
    return [{**message, "role": "system"} if message.get("role") == "developer" else message for message in messages]


def _template_text(model: ServedModel) -> str:
    tokenizer = model.processor.tokenizer
    return (None if tokenizer is None else tokenizer.chat_template.text) or ""


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return copies of the messages with the arguments of calls as objects.

    OpenAI's API has arguments as a text, but many templates write an object as JSON and would quote a text once more.
    A text that is not the JSON of an object stays as it is; an empty one, which some clients send, is no arguments.
    """
    return [_with_objects(message) for message in messages]


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    copy = dict(message)
    calls = copy.get("tool_calls")
    if isinstance(calls, (list, tuple)):
        copy["tool_calls"] = [_with_object(call) for call in calls]
    return copy


def _with_object(call: Any) -> Any:
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if not isinstance(function, Mapping):
        return dict(call)
    copy = dict(function)
    arguments = copy.get("arguments")
    if isinstance(arguments, str):
        copy["arguments"] = _as_object(arguments)
    return {**call, "function": copy}


def _as_object(arguments: str) -> dict[str, Any] | str:
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
        # Not everything that can be read can be written: infinite numbers, half of a surrogate pair.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments
