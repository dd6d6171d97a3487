"""Chooses one implementation for each operation, once, from an ordered list; keeps the reasons against the others."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from archerfish.arch.arch import Arch, ExpertsSpec, MlpSpec
from archerfish.errors import NoKernel
from archerfish.ops.cpu.library import Library, Team, library
from archerfish.ops.cpu.native import NATIVE_OPERATIONS, NativeOps
from archerfish.ops.reference import IMPLEMENTATIONS as REFERENCE
from archerfish.ops.signatures import Ops

if TYPE_CHECKING:
    from archerfish.ops.triton.operations import TritonOps


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
    threads: int = 1
    """Of the CPU."""
    vocab_size: int = 0
    """0, like the sizes below, where no model is in sight yet."""
    widest_row: int = 0
    """Numbers of a token that are computed together."""
    num_experts: int = 0
    num_sharing_queries: int = 0
    """Query heads that share a head of keys, at most."""

    @classmethod
    def of_model(cls, arch: Arch, *, device: str, dtype: str, block_size: int, threads: int = 1) -> Self:
        attention = [layer.attention for layer in arch.layers]
        return cls(
            device=device,
            dtype=dtype,
            head_dim=attention[0].head_dim,  # One for all layers: the cache stores keys of one shape.
            block_size=block_size,
            has_window=any(spec.window is not None for spec in attention),
            has_softcap=any(spec.softcap is not None for spec in attention),
            threads=threads,
            vocab_size=arch.vocab_size,
            widest_row=max(
                arch.hidden_size, *(max(one.attention.q_width, one.feed_forward.size) for one in arch.layers)
            ),
            num_experts=max(_num_experts(layer.feed_forward) for layer in arch.layers),
            num_sharing_queries=max(spec.num_heads // spec.num_kv_heads for spec in attention),
        )


def _num_experts(spec: MlpSpec | ExpertsSpec) -> int:
    return spec.num_experts if isinstance(spec, ExpertsSpec) else 0


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run one operation."""

    operation: str
    name: str
    function: Callable[..., Any]
    supports: Callable[[Target], str | None]
    """None if it runs on the target, else the reason why not."""
    adapt: Callable[..., tuple[Any, ...]] = lambda *arguments: arguments
    """The reference's arguments as this one wants them, for whoever compares the two."""
    takes_packed: bool = False
    """Matrices may come packed, in any format."""


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


def open_native(target: Target, kernels: str | None = None) -> NativeOps | None:
    """The native operations with their threads, if they run on the target; by default with the fastest kernels."""
    return None if why_not_native(target, kernels) is not None else NativeOps(Team(target.threads, kernels))


def why_not_native(target: Target, kernels: str | None = None) -> str | None:
    """The reason, or None. They are chosen all together: they share packed weights and an arrangement of the cache."""
    found = library()
    if target.device != "cpu":
        return f"they run on a CPU, not on {target.device}"
    if not isinstance(found, Library):
        return found
    if target.dtype not in ("float32", "bfloat16"):
        return f"they know float32 and bfloat16, not {target.dtype}"
    if target.head_dim is not None and (target.head_dim % NativeOps.LANES or target.head_dim > NativeOps.MAX_HEAD_DIM):
        return f"heads of {target.head_dim} are no multiple of {NativeOps.LANES} up to {NativeOps.MAX_HEAD_DIM}"
    if target.block_size is not None and target.block_size % NativeOps.LANES:
        return f"--block-size {target.block_size} is no multiple of {NativeOps.LANES}"
    for what, size, most in (
        ("vocabularies", target.vocab_size, NativeOps.MAX_VOCAB_SIZE),
        ("rows", target.widest_row, NativeOps.MAX_ROW_WIDTH),
        ("numbers of experts", target.num_experts, NativeOps.MAX_EXPERTS),
        ("groups of query heads", target.num_sharing_queries, NativeOps.MAX_QUERIES_PER_KV_HEAD),
    ):
        if size > most:
            return f"they have memory for {what} of up to {most}, not of {size}"
    if kernels is not None and kernels not in found.kernels:
        return f"this CPU runs {', '.join(found.kernels)}"
    return None


def open_triton(target: Target) -> "TritonOps | None":
    """The operations by Triton kernels, if they run on the target."""
    if why_not_triton(target) is not None:
        return None
    from archerfish.ops.triton.operations import TritonOps

    return TritonOps()


def why_not_triton(target: Target) -> str | None:
    """The reason, or None. They are chosen all together: they share an arrangement of the cache."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    from archerfish.ops.triton.attention import why_not_attention
    from archerfish.ops.triton.runtime import INTERPRETED

    if target.device != "cuda" and not INTERPRETED:
        return f"they run on a GPU, not on {target.device}"
    return why_not_attention(target.dtype, target.head_dim, target.block_size)


def implementations(native: NativeOps | None = None, triton: "TritonOps | None" = None) -> list[Implementation]:
    """Fastest first; the reference comes last and runs everywhere.

    Native operations belong to threads that somebody has to open first; they want their weights packed.
    """
    reference = [Implementation(op, "reference", function, lambda _: None) for op, function in REFERENCE.items()]
    if triton is not None:
        fast = [Implementation(op, "triton", function, why_not_triton) for op, function in triton.functions().items()]
        return fast + reference
    if native is None:
        return reference
    return [
        Implementation(op, f"native {native.kernels}", function, why_not_native, native.adapter(op), takes_packed=True)
        for op, function in native.functions().items()
    ] + reference


def all_implementations(target: Target) -> list[Implementation]:
    """Also those that do not run on the target, for whoever tells why."""
    native, triton = open_native(target), open_triton(target)
    if native is not None:
        return implementations(native)
    refused = [Implementation(op, "native", _cannot, why_not_native) for op in NATIVE_OPERATIONS]
    if triton is None:
        refused += [Implementation(op, "triton", _cannot, why_not_triton) for op in NATIVE_OPERATIONS]
    return [*refused, *implementations(None, triton)]


def _cannot(*_: Any) -> None:
    raise AssertionError("an implementation was called that does not run here")


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
