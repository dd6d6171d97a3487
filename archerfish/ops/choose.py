"""Chooses one implementation for each operation from an ordered list, and records why others were rejected."""

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
class KernelTarget:
    """The device, number format and model that kernels are chosen for."""

    device: str
    dtype: str
    head_dim: int | None = None
    """None, like block_size, where kernels are chosen for a machine without a model."""
    block_size: int | None = None
    has_window: bool = False
    """Some layers have an attention window."""
    has_softcap: bool = False
    """Some layers limit attention scores by tanh."""
    threads: int = 1
    """Number of CPU threads."""
    vocab_size: int = 0
    """0, like the sizes below, where kernels are chosen without a model."""
    widest_row: int = 0
    """Width of the widest activation of a token."""
    num_experts: int = 0
    queries_per_kv_head: int = 0
    """Largest number of query heads that share a KV head."""

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
                arch.hidden_size, *(max(layer.attention.q_width, layer.feed_forward.size) for layer in arch.layers)
            ),
            num_experts=max(_num_experts(layer.feed_forward) for layer in arch.layers),
            queries_per_kv_head=max(spec.num_heads // spec.num_kv_heads for spec in attention),
        )


def _num_experts(spec: MlpSpec | ExpertsSpec) -> int:
    return spec.num_experts if isinstance(spec, ExpertsSpec) else 0


@dataclass(frozen=True, slots=True)
class Implementation:
    """An implementation of an operation."""

    operation: str
    name: str
    function: Callable[..., Any]
    supports: Callable[[KernelTarget], str | None]
    """Returns None if it runs on the target, else the reason why not."""
    adapt: Callable[..., tuple[Any, ...]] = lambda *arguments: arguments
    """Converts the reference's arguments to its own, to compare the two."""
    takes_packed: bool = False
    """Matrices may be packed, in any format."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The implementation chosen for an operation, and the ones rejected before it."""

    operation: str
    name: str
    rejected: tuple[tuple[str, str], ...]
    """(implementation, reason) in the order they were tried."""


class ChosenOps(NamedTuple):
    ops: Ops
    choices: list[Choice]


def open_native(target: KernelTarget, kernels: str | None = None) -> NativeOps | None:
    """Start the threads of native operations if they run on the target; by default with the fastest kernels."""
    return None if why_not_native(target, kernels) is not None else NativeOps(Team(target.threads, kernels))


def why_not_native(target: KernelTarget, kernels: str | None = None) -> str | None:
    """Return why native operations do not run on the target, or None.

    They are chosen all together, because they share packed weights and a layout of KV cache blocks.
    """
    loaded = library()
    if target.device != "cpu":
        return f"they run on a CPU, not on {target.device}"
    if not isinstance(loaded, Library):
        return loaded
    if target.dtype not in ("float32", "bfloat16"):
        return f"they support float32 and bfloat16, not {target.dtype}"
    if target.head_dim is not None and (target.head_dim % NativeOps.LANES or target.head_dim > NativeOps.MAX_HEAD_DIM):
        return f"head_dim {target.head_dim} is not a multiple of {NativeOps.LANES} up to {NativeOps.MAX_HEAD_DIM}"
    if target.block_size is not None and target.block_size % NativeOps.LANES:
        return f"--block-size {target.block_size} is not a multiple of {NativeOps.LANES}"
    for name, size, limit in (
        ("the vocabulary size", target.vocab_size, NativeOps.MAX_VOCAB_SIZE),
        ("the width of activations", target.widest_row, NativeOps.MAX_ROW_WIDTH),
        ("the number of experts", target.num_experts, NativeOps.MAX_EXPERTS),
        ("the number of query heads per KV head", target.queries_per_kv_head, NativeOps.MAX_QUERIES_PER_KV_HEAD),
    ):
        if size > limit:
            return f"{name} is {size}, and native kernels support at most {limit}"
    if kernels is not None and kernels not in loaded.kernels:
        return f"this CPU supports {', '.join(loaded.kernels)}"
    return None


def open_triton(target: KernelTarget) -> "TritonOps | None":
    """Return the operations by Triton kernels if they run on the target."""
    if why_not_triton(target) is not None:
        return None
    from archerfish.ops.triton.operations import TritonOps

    return TritonOps()


def why_not_triton(target: KernelTarget) -> str | None:
    """Return why Triton operations do not run on the target, or None.

    They are chosen all together, because they share a layout of KV cache blocks.
    """
    if find_spec("triton") is None:
        return "the package triton is not installed"
    from archerfish.ops.triton.attention import why_not_attention
    from archerfish.ops.triton.runtime import INTERPRETED

    if target.device != "cuda" and not INTERPRETED:
        return f"they run on a GPU, not on {target.device}"
    return why_not_attention(target.dtype, target.head_dim, target.block_size)


def implementations(native: NativeOps | None = None, triton: "TritonOps | None" = None) -> list[Implementation]:
    """Return all implementations that were opened, fastest first. The reference is last and runs everywhere."""
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


def all_implementations(target: KernelTarget) -> list[Implementation]:
    """Return also the implementations that do not run on the target, so that reports can say why."""
    native, triton = open_native(target), open_triton(target)
    if native is not None:
        return implementations(native)
    unsupported = [Implementation(op, "native", _unsupported, why_not_native) for op in NATIVE_OPERATIONS]
    if triton is None:
        unsupported += [Implementation(op, "triton", _unsupported, why_not_triton) for op in NATIVE_OPERATIONS]
    return [*unsupported, *implementations(None, triton)]


def _unsupported(*_: Any) -> None:
    raise AssertionError("an implementation was called that does not run on this machine")


def choose_ops(target: KernelTarget, candidates: list[Implementation] | None = None) -> ChosenOps:
    """Choose the first implementation of each operation that supports the target."""
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
