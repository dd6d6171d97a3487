"""What a body comes to: requests for the engine. Knows no endpoint."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from archerfish.api.bodies.common import GenerationBody
from archerfish.engine.input_processor import InputProcessor, Prompt
from archerfish.engine.outputs import OutputStream
from archerfish.request import SLO, Request, RequestClass, SamplingParams


class TokenizedPrompt(NamedTuple):
    """A prompt whose token ids are known."""

    token_ids: "array[int]"
    text: str | None = None
    """What was tokenized, where the reply repeats it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInputs:
    """Prompts, and how all of them are to be answered."""

    prompts: Sequence[Prompt | TokenizedPrompt]
    params: SamplingParams
    body: GenerationBody
    """Says how urgent it is, what it shares, what it is called."""
    add_special_tokens: bool = False
    """Whether the tokenizer puts its tokens around text prompts. Rendered chat templates have them already."""
    repeats_prompt: bool = False
    """Whether the reply holds the text of the prompts."""

    @property
    def texts(self) -> list[str | None]:
        """The text of each prompt; None where only its token ids are known."""
        return [
            prompt if isinstance(prompt, str) else prompt.text if isinstance(prompt, TokenizedPrompt) else None
            for prompt in self.prompts
        ]

    @property
    def num_sequences(self) -> int:
        """Number of answers that the engine writes."""
        return len(self.prompts) * (self.params.best_of or self.params.n)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens in all prompts, which must be tokenized."""
        return sum(len(prompt.token_ids) for prompt in self.prompts if isinstance(prompt, TokenizedPrompt))

    def tokenized(self, processor: InputProcessor) -> "EngineInputs":
        """The same with token ids for prompts, or a RequestError that names what is wrong with one of them."""
        prompts = []
        for prompt, text in zip(self.prompts, self.texts, strict=True):
            whole = self._token_ids(processor, prompt)
            token_ids = processor.shortened(whole, self.params)
            processor.check_length(token_ids)
            # Of a prompt that was cut, the reply repeats what is left.
            is_repeated = self.repeats_prompt and len(token_ids) == len(whole)
            prompts.append(TokenizedPrompt(array("i", token_ids), text if is_repeated else None))
        return replace(self, prompts=prompts)

    def prompt_length(self, index: int = 0) -> int:
        """Number of tokens in one of the prompts, which must be tokenized."""
        prompt = self.prompts[index]
        assert isinstance(prompt, TokenizedPrompt), "prompts are tokenized before they are answered"
        return len(prompt.token_ids)

    def requests(
        self,
        processor: InputProcessor,
        external_id: str = "",
        *,
        request_class: RequestClass = RequestClass.ONLINE,
        slo: SLO | None = None,
        tenant: str = "",
        cache_salt: str | None = None,
    ) -> list[Request]:
        """One for each prompt, or a RequestError that names what is wrong.

        `external_id` is for a body without one; `cache_salt` takes the place of the body's.
        """
        base_id, body = self.body.request_id or external_id, self.body
        params = processor.settle(
            self.params
        )  # Once for all prompts: checking them may take longer than a prompt does.
        return [
            processor.request(
                self._token_ids(processor, prompt),
                params,
                external_id=base_id if len(self.prompts) == 1 else f"{base_id}-{number}",
                request_class=request_class,
                priority=body.priority,
                cache_salt=body.cache_salt if cache_salt is None else cache_salt,
                slo=body.to_slo(slo),
                tenant=tenant,
                position=number,
            )
            for number, prompt in enumerate(self.prompts)
        ]

    def _token_ids(self, processor: InputProcessor, prompt: Prompt | TokenizedPrompt) -> Sequence[int]:
        if isinstance(prompt, TokenizedPrompt):
            return prompt.token_ids
        return processor.token_ids(prompt, add_special_tokens=self.add_special_tokens)


class EndpointCall(Protocol):
    """A body that was understood: what it asks, and how the answers are told."""

    inputs: EngineInputs

    def reply(self, written: Sequence[OutputStream]) -> dict[str, Any]:
        """The body of the answer, when all of it is there. One of `written` for each prompt."""
        ...
