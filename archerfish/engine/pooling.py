"""What a model makes of prompts instead of an answer: embeddings, states, similarities, in shapes vLLM's users know.

Knows no engine: a request for it is a request like any other, that asks for the states of its prompt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from archerfish.checks import check_bool, check_int
from archerfish.engine.outputs import RequestOutput
from archerfish.errors import InvalidParameter, RequestError
from archerfish.request import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

TASKS = ("embed", "token_embed")
"""What a prompt can be made into: one vector, the mean of the last layer's states; or the state of each token."""

_LONGEST_PROMPT = 2**31 - 1
_LEAST_LENGTH = 1e-12
"""Of a vector: shorter ones have no direction."""


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How prompts are made into vectors."""

    task: str | None = None
    """embed or token_embed, where the method does not say it."""
    dimensions: int | None = None
    """Not supported: no model here was trained for shorter vectors."""
    use_activation: bool | None = None
    """Scale each vector to length 1."""
    normalize: bool | None = None
    """The same under its older name."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens at the end of a prompt; -1 keeps as many as fit."""

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise InvalidParameter("task", self.task, f"it must be one of {', '.join(TASKS)}")
        if self.dimensions is not None:
            allowed = "no model here was trained for shorter vectors; cut them yourself, or leave it out"
            raise InvalidParameter("dimensions", self.dimensions, allowed)
        for name in ("use_activation", "normalize"):
            if getattr(self, name) is not None:
                check_bool(name, getattr(self, name))
        if self.use_activation is not None and self.normalize is not None:
            raise InvalidParameter("normalize", self.normalize, "use_activation is the same; leave one of them out")
        if self.truncate_prompt_tokens not in (None, -1):
            check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, _LONGEST_PROMPT)

    @property
    def has_unit_length(self) -> bool:
        return bool(self.use_activation or self.normalize)

    def sampling_params(self, task: str) -> SamplingParams:
        """The request that gives what the task needs: it ends with the first token."""
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            detokenize=False,
            prompt_embedding=task == "embed",
            prompt_states=task == "token_embed",
            truncate_prompt_tokens=self.truncate_prompt_tokens,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )


@dataclass(slots=True)
class PoolingOutput:
    data: "Tensor"
    """float32: a vector for embed, [tokens, hidden size] for token_embed."""


@dataclass(slots=True)
class EmbeddingOutput:
    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclass(slots=True)
class ScoringOutput:
    score: float
    """The cosine of the angle between two embeddings: 1 for the same direction."""


Output = TypeVar("Output")


@dataclass(slots=True)
class PoolingRequestOutput(Generic[Output]):
    """A request, and what was made of its prompt."""

    request_id: str
    outputs: Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    """Always 0: the state of every prompt token is needed."""
    finished: bool = True


class EmbeddingRequestOutput(PoolingRequestOutput[EmbeddingOutput]):
    __slots__ = ()


class ScoringRequestOutput(PoolingRequestOutput[ScoringOutput]):
    __slots__ = ()


def settle_task(task: str | None, params: PoolingParams) -> str:
    """Which task is meant, by a method's argument or by the parameters."""
    if task is not None and params.task is not None and task != params.task:
        raise InvalidParameter("pooling_task", task, f"the pooling parameters say {params.task}; leave one of them out")
    chosen = task or params.task
    if chosen == "classify" or chosen == "token_classify":
        raise InvalidParameter("pooling_task", chosen, WHY_NOT_CLASSIFIED)
    if chosen not in TASKS:
        allowed = 'it must be "embed" (one vector, as embed() gives) or "token_embed" (the state of each token)'
        raise InvalidParameter("pooling_task", chosen, allowed)
    return chosen


WHY_NOT_CLASSIFIED = (
    "no model here has a classification head; let it choose between the classes with "
    "SamplingParams(structured_outputs=StructuredOutputsParams(choice=[...])), or compare texts with score()"
)


def as_pooling_params(given: object) -> PoolingParams:
    if given is None:
        return PoolingParams()
    if not isinstance(given, PoolingParams):
        raise InvalidParameter("pooling_params", given, "they must be PoolingParams")
    return given


def pooled(output: RequestOutput, params: PoolingParams) -> PoolingRequestOutput[PoolingOutput]:
    """What was made of a prompt, or a RequestError with the reason why nothing was."""
    import numpy as np
    import torch

    if output.prompt_states is not None:
        states = np.frombuffer(output.prompt_states, np.float32).reshape(len(output.prompt_token_ids), -1)
        data = torch.from_numpy(states.copy())
    elif output.prompt_embedding is not None:
        data = torch.tensor(output.prompt_embedding)
    else:
        [answer] = output.outputs
        raise RequestError(answer.error or f"the prompt was not computed: it ended with {answer.finish_reason}")
    if params.has_unit_length:
        data = data / data.norm(dim=-1, keepdim=True).clamp(min=_LEAST_LENGTH)
    return PoolingRequestOutput(output.request_id, PoolingOutput(data), output.prompt_token_ids)


def embedded(output: PoolingRequestOutput[PoolingOutput]) -> EmbeddingRequestOutput:
    """The same with the vector as a list of numbers."""
    embedding = EmbeddingOutput(output.outputs.data.tolist())
    return EmbeddingRequestOutput(output.request_id, embedding, output.prompt_token_ids)


def paired(first: Sequence[Any], second: Sequence[Any]) -> list[tuple[int, int]]:
    """Which of the first is compared with which of the second: one with all, or each with its own."""
    if not first or not second:
        raise InvalidParameter("data_1" if not first else "data_2", [], "it must have at least one text")
    if len(first) not in (1, len(second)):
        allowed = f"it must be one text, or as many as data_2 has ({len(second)})"
        raise InvalidParameter("data_1", f"{len(first)} texts", allowed)
    return [(0 if len(first) == 1 else index, index) for index in range(len(second))]


def scored(first: EmbeddingRequestOutput, second: EmbeddingRequestOutput) -> ScoringRequestOutput:
    """How similar two prompts are."""
    a, b = first.outputs.embedding, second.outputs.embedding
    lengths = math.hypot(*a) * math.hypot(*b)
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return ScoringRequestOutput(
        f"{first.request_id}_{second.request_id}",
        ScoringOutput(product / max(lengths, _LEAST_LENGTH)),
        [*first.prompt_token_ids, *second.prompt_token_ids],
    )
