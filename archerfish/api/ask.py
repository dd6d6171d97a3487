"""What a body comes to: requests for the engine. Knows no endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from archerfish.api.bodies.common import GenerationBody
from archerfish.api.writing import Writing
from archerfish.engine.intake import Intake, Prompt
from archerfish.request import SLO, Request, RequestClass, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Prompts, and how all of them are to be answered."""

    prompts: Sequence[Prompt]
    params: SamplingParams
    body: GenerationBody
    """Says how urgent it is, what it shares, what it is called."""
    add_special_tokens: bool = False

    @property
    def size(self) -> int:
        """Characters or token ids of all prompts: how much work it is to read them."""
        return sum(len(prompt) for prompt in self.prompts)

    def requests(
        self,
        intake: Intake,
        external_id: str = "",
        *,
        request_class: RequestClass = RequestClass.ONLINE,
        slo: SLO | None = None,
        tenant: str = "",
    ) -> list[Request]:
        """One for each prompt, or a RequestError that names what is wrong. `external_id` is for a body without one."""
        base_id, body = self.body.request_id or external_id, self.body
        return [
            intake.request(
                prompt,
                self.params,
                external_id=base_id if len(self.prompts) == 1 else f"{base_id}-{number}",
                request_class=request_class,
                priority=body.priority,
                cache_salt=body.cache_salt,
                add_special_tokens=self.add_special_tokens,
                slo=body.to_slo(slo),
                tenant=tenant,
            )
            for number, prompt in enumerate(self.prompts)
        ]


class Call(Protocol):
    """A body that was understood: what it asks, and how the answers are told."""

    @property
    def ask(self) -> Ask: ...

    def reply(self, written: Sequence[Writing]) -> dict[str, Any]:
        """The body of the answer, when all of it is there. One of `written` for each prompt."""
        ...
