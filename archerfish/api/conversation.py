"""A conversation on its way to the engine: messages, tools and a wanted form become a prompt, and answers are read.

Every endpoint that answers conversations comes through here, with messages and tools in the words of the chat API.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archerfish.api.bodies.common import GenerationBody
from archerfish.api.model import ServedModel
from archerfish.api.tool_use import AnswerReader, ToolUse
from archerfish.api.tools import template_messages
from archerfish.request import SamplingParams, Structured


class Conversation:
    """What has been said, and what may be said next."""

    def __init__(
        self,
        model: ServedModel,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: object = None,
        parallel: bool = True,
        form: Structured | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        """`template` are variables of the chat template. Raises what is wrong with any of it."""
        self._model = model
        self._form = form
        self._tools = ToolUse.of(model, tools, tool_choice, parallel)
        prepared = _in_known_roles(model, template_messages(messages))
        self.prompt = model.intake.chat_text(prepared, tools=self._tools.shown, **(template or {}))

    def __getstate__(self) -> dict[str, Any]:
        """What is needed once the prompt was made: how answers are read."""
        return {**self.__dict__, "prompt": "", "_tools": self._tools.without_descriptions()}

    @property
    def may_call(self) -> bool:
        return self._tools.shown is not None

    @property
    def names_function(self) -> bool:
        """Whether one function was named, to be called once."""
        return self._tools.names_function

    def params(self, body: GenerationBody, **more: Any) -> SamplingParams:
        """How the answer is written. `more` are fields that an endpoint has by itself; None is not given."""
        return body.sampling_params(
            {"max_tokens": None, **self._model.recommended},
            structured=self._tools.constraint or self._form,
            skip_special_tokens=False if self._tools.reads_special_tokens else None,
            **more,
        )

    def reader(self) -> AnswerReader:
        """For one answer."""
        return self._tools.new_reader()


def _in_known_roles(model: ServedModel, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developers speak as the system to models that were made before there were any."""
    tokenizer = model.intake.tokenizer
    text = None if tokenizer is None else tokenizer.chat_template.text
    if text is not None and "developer" in text:
        return messages
    return [{**one, "role": "system"} if one.get("role") == "developer" else one for one in messages]
