"""A conversation on its way to the engine: messages, tools and a wanted form become a prompt, and answers are read.

Every endpoint that answers conversations comes through here, with messages and tools in the words of the chat API.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from archerfish.request import SamplingParams, Structured
from archerfish.server.bodies.common import GenerationBody
from archerfish.server.service import Service
from archerfish.server.tool_use import AnswerReader, ToolUse
from archerfish.server.tools import template_messages


class Conversation:
    """What has been said, and what may be said next."""

    def __init__(
        self,
        service: Service,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: object = None,
        parallel: bool = True,
        form: Structured | None = None,
        template: Mapping[str, Any] | None = None,
    ) -> None:
        """`template` are variables of the chat template. Raises what is wrong with any of it."""
        self._service = service
        self._form = form
        self._tools = ToolUse.of(service, tools, tool_choice, parallel)
        prepared = _in_known_roles(service, template_messages(messages))
        self.prompt = service.intake.chat_text(prepared, tools=self._tools.shown, **(template or {}))

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
            {"max_tokens": None, **self._service.recommended},
            structured=self._tools.constraint or self._form,
            skip_special_tokens=False if self._tools.reads_special_tokens else None,
            **more,
        )

    def reader(self) -> AnswerReader:
        """For one answer."""
        return self._tools.new_reader()


def _in_known_roles(service: Service, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Developers speak as the system to models that were made before there were any."""
    tokenizer = service.intake.tokenizer
    text = None if tokenizer is None else tokenizer.chat_template.text
    if text is not None and "developer" in text:
        return messages
    return [{**one, "role": "system"} if one.get("role") == "developer" else one for one in messages]
