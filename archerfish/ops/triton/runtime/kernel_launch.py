"""Compiles and launches kernels, with programmatic dependent launch where the GPU has it.

With programmatic dependent launch (PDL) a kernel may start before the previous one has ended. Each kernel therefore has
a constexpr PDL: where it is set, nothing that an earlier kernel writes may be read before `pdl_wait`, and `pdl_trigger`
allows the next kernel to start. Weights, which no kernel writes, may be fetched before.

Kernels can also be compiled without being launched (`compile_only`), in parallel: compiled one after the other, at the
first launch of each, a model's kernels take many times as long.
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
"""Whether kernels are run by Triton's interpreter, on tensors in main memory."""


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Wait until everything that earlier kernels wrote can be read."""
    if PDL:
        gdc_wait()


@triton.jit
def pdl_trigger(PDL: tl.constexpr):
    """Allow the next kernel to start, as far as there are free resources."""
    if PDL:
        gdc_launch_dependents()


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Launch `kernel[grid](...)`, with PDL where the GPU has it. Settings are constexprs, num_warps and num_stages."""
    if INTERPRETED:
        if not is_compile_only():
            settings.pop("num_stages", None)
            kernel[grid](*arguments, PDL=False, **settings)
        return
    early = _starts_early()
    if is_compile_only():
        # With the arguments of the real launch: a kernel is specialized on their alignment, too.
        kernel.warmup(*arguments, grid=grid, PDL=early, launch_pdl=early, **settings)
    else:
        kernel[grid](*arguments, PDL=early, launch_pdl=early, **settings)


def warps_for(block: int) -> int:
    """Return the number of warps for a program that holds `block` numbers at once."""
    return min(32, max(1, block // (32 * _NUMBERS_PER_THREAD)))


_compile_only: ContextVar[bool] = ContextVar("compile_only", default=False)


def is_compile_only() -> bool:
    """Return whether kernels are only compiled, so that their outputs are undefined."""
    return _compile_only.get()


@contextmanager
def compile_only(num_threads: int) -> Iterator[None]:
    """Compile the kernels that are launched within this context, by several threads, instead of running them.

    A kernel that cannot be compiled, or does not fit the GPU, fails when it is launched.
    """
    before = _compile_only.set(True)
    try:
        with (
            ThreadPoolExecutor(num_threads) as pool,
            triton.AsyncCompileMode(_LoadAfterCompile(pool), ignore_errors=True),
        ):
            yield
    finally:
        _compile_only.reset(before)


def compile_cache_directory() -> Path:
    """Return the directory in which Triton stores compiled kernels for later processes."""
    return Path(triton.knobs.cache.dir)


@triton.jit
def _empty_kernel(PDL: tl.constexpr):
    pdl_trigger(PDL)


@cache
def start_compiler() -> Thread:
    """Start the work that Triton does before its first kernel on a thread, once: it opens the driver, and reads all of
    its own code to decide whether compiled kernels are still valid. It takes a few tenths of a second, most of them
    without the GIL.

    A launch before the thread has ended does the same work again.
    """
    thread = Thread(target=_launch_empty, name="wake Triton", daemon=True)
    thread.start()
    return thread


def _launch_empty() -> None:
    if not INTERPRETED:  # The interpreter needs no start-up, and runs one kernel at a time.
        launch(_empty_kernel, (1,), num_warps=1)


class _LoadAfterCompile(Executor):
    """Loads a compiled kernel on the thread that compiled it: its launcher is compiled only then."""

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
    """Return whether the GPU has programmatic dependent launch."""
    return torch.cuda.get_device_capability() >= (9, 0)


@triton.jit
def prefetch(pointers):
    """Prefetch addresses into the L2 cache without waiting."""
    tl.inline_asm_elementwise(
        "{ prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
    )


_WIDEN: tl.constexpr = tl.constexpr(INTERPRETED)


@triton.jit
def dot(a, b, total):
    """Return total + a @ b in float32."""
    if _WIDEN:  # The interpreter would multiply the bit patterns of bfloat16 and of eight-bit floats.
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total, input_precision="ieee")
