"""Chooses one implementation for each operation, once, from an ordered list; keeps the reasons against the others."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from archerfish.arch.arch import Arch
from archerfish.errors import NoKernel
from archerfish.ops.reference import IMPLEMENTATIONS as REFERENCE
from archerfish.ops.signatures import Ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the chosen kernels will be asked to run on."""

    device: str
    dtype: str
    head_dim: int | None = None
    """None, like block_size, where no model is in sight yet: kernels then answer for the machine alone."""
    block_size: int | None = None
    has_window: bool = False
    """Some layer's attention does not reach back to the start."""
    has_softcap: bool = False
    """Some layer squashes its scores."""

    @classmethod
    def of_model(cls, arch: Arch, *, device: str, dtype: str, block_size: int) -> Self:
        attention = [layer.attention for layer in arch.layers]
        return cls(
            device=device,
            dtype=dtype,
            head_dim=attention[0].head_dim,  # One for all layers: the cache stores keys of one shape.
            block_size=block_size,
            has_window=any(spec.window is not None for spec in attention),
            has_softcap=any(spec.softcap is not None for spec in attention),
        )


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run one operation."""

    operation: str
    name: str
    function: Callable[..., Any]
    supports: Callable[[Target], str | None]
    """None if it runs on the target, else the reason why not."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was taken for an operation, and why not what stood before it."""

    operation: str
    name: str
    rejected: tuple[tuple[str, str], ...]
    """(implementation, reason) in the order they were tried."""


class ChosenOps(NamedTuple):
    ops: Ops
    choices: list[Choice]


def implementations() -> list[Implementation]:
    """All that exist, fastest first; the reference comes last and runs everywhere."""
    return [Implementation(op, "reference", function, lambda _: None) for op, function in REFERENCE.items()]


def choose_ops(target: Target, candidates: list[Implementation] | None = None) -> ChosenOps:
    """The first implementation of each operation that supports the target."""
    candidates = implementations() if candidates is None else candidates
    functions: dict[str, Callable[..., Any]] = {}
    choices = []
    for operation in (f.name for f in fields(Ops)):
        rejected: list[tuple[str, str]] = []
        for candidate in (c for c in candidates if c.operation == operation):
            reason = candidate.supports(target)
            if reason is None:
                functions[operation] = candidate.function
                choices.append(Choice(operation, candidate.name, tuple(rejected)))
                break
            rejected.append((candidate.name, reason))
        else:
            tried = "; ".join(f"{name}: {reason}" for name, reason in rejected) or "there is none"
            raise NoKernel(f"no implementation of {operation} for {target.dtype} on {target.device}. Tried: {tried}")
    return ChosenOps(Ops(**functions), choices)
