"""What a model makes of prompts instead of an answer: embeddings, states, similarities, in shapes vLLM's users know.

Knows no engine: a request for it is a request like any other, that asks for the states of its prompt.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from archerfish.checks import check_bool, check_int
from archerfish.engine.outputs import RequestOutput
from archerfish.errors import InvalidParameter, RequestError
from archerfish.request import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

TASKS = ("embed", "token_embed")
"""What a prompt can be made into: one vector, the mean of the last layer's states; or the state of each token."""

_MAX_COUNT = 2**31 - 1
_LEAST_LENGTH = 1e-12
"""Of a vector: shorter ones have no direction."""


class EmbeddingSizes(NamedTuple):
    """The numbers of an embedding: as the model makes it, and what it can be cut to."""

    size: int
    """As the model makes it."""
    shorter: tuple[int, ...] | None = ()
    """What it can also be cut to without losing its meaning (Matryoshka); None is every size."""

    def check(self, size: int) -> None:
        """Refuse to cut what loses its meaning when it is cut."""
        can_be_cut = size < self.size if self.shorter is None else size in self.shorter
        if size == self.size or can_be_cut:
            return
        allowed = f"this model's embeddings have {self.size} numbers"
        if self.shorter is None:
            raise InvalidParameter("dimensions", size, f"{allowed}: give fewer")
        if self.shorter:
            raise InvalidParameter("dimensions", size, f"{allowed}, or {', '.join(map(str, self.shorter))}")
        allowed += ", and its config.json does not say that it was trained to have them cut (is_matryoshka, or a list"
        raise InvalidParameter("dimensions", size, f"{allowed} matryoshka_dimensions): leave it out")


def cut_embedding(values: list[float], size: int | None, normalize: bool | None) -> list[float]:
    """Return the first `size` numbers of an embedding, scaled to length 1 where `normalize` says so.

    By default (None) what was cut is scaled, and what was not is as the model made it.
    """
    is_cut = size is not None and size < len(values)
    if is_cut:
        values = values[:size]
    if not (is_cut if normalize is None else normalize):
        return values
    length = math.hypot(*values)
    return [value / length if length else 0.0 for value in values]


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How prompts are made into vectors."""

    task: str | None = None
    """embed or token_embed, where the method does not say it."""
    dimensions: int | None = None
    """Cut embeddings to their first numbers and scale them to length 1, for models that were trained for it."""
    use_activation: bool | None = None
    """Scale each vector to length 1; by default only those that are cut."""
    normalize: bool | None = None
    """The same under its older name."""
    truncate_prompt_tokens: int | None = None
    """Keep only this many tokens at the end of a prompt; -1 keeps as many as fit."""

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in TASKS:
            raise InvalidParameter("task", self.task, f"it must be one of {', '.join(TASKS)}")
        if self.dimensions is not None:
            check_int("dimensions", self.dimensions, 1, _MAX_COUNT)
            if self.task == "token_embed":
                raise InvalidParameter("dimensions", self.dimensions, "the states of tokens are not cut; leave it out")
        for name in ("use_activation", "normalize"):
            if getattr(self, name) is not None:
                check_bool(name, getattr(self, name))
        if self.use_activation is not None and self.normalize is not None:
            raise InvalidParameter("normalize", self.normalize, "use_activation is the same; leave one of them out")
        if self.truncate_prompt_tokens not in (None, -1):
            check_int("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, _MAX_COUNT)

    @property
    def has_unit_length(self) -> bool | None:
        """Whether vectors are scaled to length 1; None where nothing says so."""
        return self.normalize if self.use_activation is None else self.use_activation

    def sampling_params(self) -> SamplingParams:
        """Return the request that gives what the task needs: it ends with the first token."""
        return SamplingParams(
            temperature=0.0,
            max_tokens=1,
            detokenize=False,
            prompt_embedding=self.task == "embed",
            prompt_states=self.task == "token_embed",
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


def as_pooling(
    given: object, task: str | None, truncate_prompt_tokens: int | None, sizes: EmbeddingSizes
) -> PoolingParams:
    """Return complete parameters of a prompt: those that were given, with a method's own arguments."""
    params = PoolingParams() if given is None else given
    if not isinstance(params, PoolingParams):
        raise InvalidParameter("pooling_params", given, "they must be PoolingParams, one or one for each prompt")
    if truncate_prompt_tokens is not None and params.truncate_prompt_tokens not in (None, truncate_prompt_tokens):
        allowed = f"the pooling parameters say {params.truncate_prompt_tokens}; leave one of them out"
        raise InvalidParameter("truncate_prompt_tokens", truncate_prompt_tokens, allowed)
    params = replace(params, task=_settled_task(task, params))
    if truncate_prompt_tokens is not None:
        params = replace(params, truncate_prompt_tokens=truncate_prompt_tokens)
    if params.dimensions is not None:
        sizes.check(params.dimensions)
    return params


def _settled_task(task: str | None, params: PoolingParams) -> str:
    """Return which task is meant, by a method's argument or by the parameters."""
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


def pooled(output: RequestOutput, params: PoolingParams) -> PoolingRequestOutput[PoolingOutput]:
    """What was made of a prompt, or a RequestError with the reason why nothing was."""
    import numpy as np
    import torch

    if output.prompt_states is not None:
        states = np.frombuffer(output.prompt_states, np.float32).reshape(len(output.prompt_token_ids), -1)
        data = torch.from_numpy(states.copy())
        if params.has_unit_length:
            data = data / data.norm(dim=-1, keepdim=True).clamp(min=_LEAST_LENGTH)
    elif output.prompt_embedding is not None:
        data = torch.tensor(cut_embedding(output.prompt_embedding, params.dimensions, params.has_unit_length))
    else:
        [answer] = output.outputs
        raise RequestError(answer.error or f"the prompt was not computed: it ended with {answer.finish_reason}")
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
