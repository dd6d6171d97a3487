"""How every kernel here is launched: early, so that what does not depend on the kernel before overlaps with it.

A kernel may start before the one before it has ended (programmatic dependent launch). Each therefore has a constexpr
EARLY: where it is set, nothing that an earlier kernel writes may be touched before `await_inputs`, and the next kernel
is let in by `let_next_start`. Weights, which no kernel writes, may be fetched before.

Launches can be rehearsed: their kernels are then compiled side by side instead of run, because one after the other, as
each is first launched, a model's take many times as long.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from threading import Thread
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_NUMBERS_PER_THREAD = 8
INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Kernels are run by Triton's interpreter, on tensors in main memory."""


@triton.jit
def await_inputs(EARLY: tl.constexpr):
    """Everything that earlier kernels wrote can be read from here on."""
    if EARLY:
        gdc_wait()


@triton.jit
def let_next_start(EARLY: tl.constexpr):
    """The next kernel may be started from here on, as far as there is room for it."""
    if EARLY:
        gdc_launch_dependents()


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """`kernel[grid](...)`, early where it runs on a GPU. Settings are constexprs, num_warps and num_stages."""
    if INTERPRETED:
        if not is_rehearsal():
            settings.pop("num_stages", None)
            kernel[grid](*arguments, EARLY=False, **settings)
        return
    early = _starts_early()
    if is_rehearsal():
        # With the very arguments of the launch to come: a kernel is compiled for how they are aligned, too.
        kernel.warmup(*arguments, grid=grid, EARLY=early, launch_pdl=early, **settings)
    else:
        kernel[grid](*arguments, EARLY=early, launch_pdl=early, **settings)


def warps_for(block: int) -> int:
    """Of a program that holds so many numbers at once."""
    return min(32, max(1, block // (32 * _NUMBERS_PER_THREAD)))


_rehearsal: ContextVar[bool] = ContextVar("rehearsal", default=False)


def is_rehearsal() -> bool:
    """Nothing is launched, so nothing that a kernel should have written means anything."""
    return _rehearsal.get()


@contextmanager
def rehearsal(num_threads: int) -> Iterator[None]:
    """Launches meanwhile are not made: their kernels are compiled by some threads, and ready to be launched at the end.

    One that cannot be compiled, or does not fit the GPU, says so when it is launched.
    """
    before = _rehearsal.set(True)
    try:
        with ThreadPoolExecutor(num_threads) as pool, triton.AsyncCompileMode(_Loading(pool), ignore_errors=True):
            yield
    finally:
        _rehearsal.reset(before)


def compiled_directory() -> Path:
    """Where Triton keeps what it compiled, for later processes."""
    return Path(triton.knobs.cache.dir)


@triton.jit
def _nothing_kernel(EARLY: tl.constexpr):
    let_next_start(EARLY)


@cache
def wake_compiler() -> Thread:
    """What Triton does before its first kernel, done by a thread, once: its driver is opened, and all of its code read
    to tell whether what it compiled before still holds. A few tenths of a second, most of them without the interpreter.

    Whoever launches something before the thread has ended does the same work again.
    """
    thread = Thread(target=_launch_nothing, name="wake Triton", daemon=True)
    thread.start()
    return thread


def _launch_nothing() -> None:
    if not INTERPRETED:  # The interpreter has nothing to wake, and runs one kernel at a time.
        launch(_nothing_kernel, (1,), num_warps=1)


class _Loading(Executor):
    """Has what was compiled loaded by the same thread: the code that launches a kernel is compiled only then."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool

    def submit(self, compiled: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        def loaded() -> Any:
            kernel = compiled(*arguments, **named)
            assert kernel.run is not None
            return kernel

        return self._pool.submit(loaded)


@cache
def _starts_early() -> bool:
    """Whether the GPU can start a kernel before the one before it has ended."""
    return torch.cuda.get_device_capability() >= (9, 0)


@triton.jit
def prefetch(pointers):
    """Have what lies there brought into the second-level cache, and wait for nothing."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


_WIDEN: tl.constexpr = tl.constexpr(INTERPRETED)


@triton.jit
def dot(a, b, total):
    """total + a @ b in float32."""
    if _WIDEN:  # The interpreter would multiply the bit patterns of bfloat16 and of eight-bit floats.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")
