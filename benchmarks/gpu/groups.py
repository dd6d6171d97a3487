"""Measures one group of rows in this process, and prints each as JSON when it is measured.

Models have real shapes and random weights. Values are medians of five, unless a row's note says how many.
"""

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from decoding import decode_seconds
from invariance import measure_invariance
from measuring import Row, median, read_bandwidth, timed
from names import GROUPS

from archerfish.arch.cost import StepCost
from archerfish.bench.offline.measure import OfflineBench
from archerfish.bench.offline.workloads import OfflineWorkload, nano_vllm_workload, random_workload
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Assembly, build
from archerfish.machine.peak import Peak
from archerfish.request import SamplingParams

_SHAPES = Path(__file__).parent / "shapes"
_FLOPS = 989e12
"""Operations per second of an H100 or H200 in bfloat16 without sparsity, by the vendor; eight bits have twice as
many."""
_DRAWN = SamplingParams(temperature=0.8, ignore_eos=True)


@contextmanager
def engine(shape: str, **settings: Any) -> Iterator[Assembly]:
    path = str(_SHAPES / f"{shape}.json")
    assembly = build(EngineConfig(model=path, load_format="dummy", skip_tokenizer_init=True, **settings))
    try:
        yield assembly
    finally:
        assembly.engine.close()
        gc.collect()
        torch.cuda.empty_cache()


def cost_of(assembly: Assembly) -> StepCost:
    cost = assembly.engine.cost
    assert cost is not None
    return cost


def peak_of(assembly: Assembly, bandwidth: float) -> Peak:
    return Peak(_FLOPS if assembly.config.quantization == "none" else 2 * _FLOPS, bandwidth)


# -- rows -------------------------------------------------------------------------------------------------------------


def machine() -> None:
    Row(row="memory read, TB/s", value=read_bandwidth() / 1e12).emit()
    source = torch.ones(2**30, device="cuda")
    target = torch.empty_like(source)
    seconds = median(lambda: timed(lambda: target.copy_(source)))
    Row(row="memory copied, read and written, TB/s", value=2 * source.nbytes / seconds / 1e12).emit()
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    flops = 2 * 8192**3 / median(lambda: timed(lambda: square @ square))
    Row(row="largest GEMM in bfloat16, TFLOP/s", value=flops / 1e12, mfu=flops / _FLOPS).emit()


def decode(name: str, shape: str, goal: float, **settings: Any) -> None:
    """Measure one request of 128 tokens."""
    bandwidth = read_bandwidth()
    with engine(shape, max_num_seqs=8, max_model_len=4096, **settings) as assembly:
        seconds = median(lambda: decode_seconds(assembly, 1, 128, steps=128, params=_DRAWN))
        mbu = cost_of(assembly).weight_bytes(1, 1) / seconds / bandwidth
        Row(row=f"{name}, one request, tokens/s", value=1 / seconds, goal=goal, mbu=mbu).emit()


def slope(name: str, goal: float, **settings: Any) -> None:
    bandwidth = read_bandwidth()
    with engine("llama-3.1-8b", max_num_seqs=8, max_model_len=131072, **settings) as assembly:
        short, long = (
            median(lambda context=context: decode_seconds(assembly, 1, context, steps=32, params=_DRAWN))
            for context in (1_000, 100_000)
        )
        added = (long - short) / 99_000
        num_bytes = sum(reach.bytes_per_key for reach in cost_of(assembly).reaches)
        row = f"{name}, a cached token adds to a step, ns"
        Row(row=row, value=added * 1e9, goal=goal, mbu=num_bytes / added / bandwidth).emit()


def prefill(name: str, shape: str, length: int, goal: float) -> None:
    with engine(shape, max_num_seqs=8, max_model_len=2 * length) as assembly:
        salts = iter(range(100))
        workload = random_workload(1, length, 1, 100_000, seed=0)
        bench = OfflineBench.of(assembly)
        seconds = median(lambda: bench.run(workload, cache_salt=str(next(salts))).seconds)
        attention = sum(2 * 2 * layer.attention.q_width * length**2 / 2 for layer in assembly.arch.layers)
        mfu = (cost_of(assembly).token_flops * length + attention) / seconds / _FLOPS
        row = f"{name}, prompt of {length}, % of the maker's FLOP/s"
        Row(row=row, value=100 * mfu, goal=goal, mfu=mfu, note=f"{1000 * seconds:.0f} ms").emit()


def throughput(
    assembly: Assembly, workload: OfflineWorkload, peak: Peak, *, warm_up: OfflineWorkload, repeats: int = 1
) -> Row:
    """Measure output tokens per second, with the seconds in the note."""
    bench = OfflineBench.of(assembly)
    bench.run(warm_up, cache_salt="warm-up")
    meter = bench.meter(peak)
    seconds = [bench.run(workload, meter, cache_salt=str(turn)).seconds for turn in range(repeats)]
    phases = (meter.prefill, meter.decode)
    taken = statistics.median(seconds)
    times = f"{taken:.1f} s" if repeats == 1 else f"{taken:.1f} s, median of {repeats}"
    return Row(
        row="tokens/s",
        value=workload.num_output_tokens / taken,
        mbu=sum(phase.num_bytes for phase in phases) / sum(seconds) / peak.bandwidth,
        mfu=sum(phase.flops for phase in phases) / sum(seconds) / peak.flops,
        note=f"{len(workload.jobs)} requests, {times}",
    )


def offline(name: str, shape: str, lengths: tuple[int, int], number: int, goal: float | None, **settings: Any) -> None:
    """Measure requests of equal lengths that arrive at once, in a single run; fewer tokens warm up."""
    bandwidth = read_bandwidth()
    with engine(shape, max_num_seqs=number, max_model_len=4096, **settings) as assembly:
        vocabulary = assembly.arch.vocab_size
        workload = random_workload(number, *lengths, vocabulary, seed=0)
        warm_up = random_workload(number, 16, 8, vocabulary, seed=1)
        row = throughput(assembly, workload, peak_of(assembly, bandwidth), warm_up=warm_up)
        replace(row, row=f"{name}, tokens/s", goal=goal).emit()


def nano_vllm() -> None:
    bandwidth = read_bandwidth()
    with engine("qwen3-0.6b", max_num_seqs=256, max_model_len=4096) as assembly:
        workload = nano_vllm_workload(assembly.arch.vocab_size)
        row = throughput(assembly, workload, peak_of(assembly, bandwidth), warm_up=workload, repeats=3)
        replace(row, row="Qwen3-0.6B, nano-vllm's requests, tokens/s", goal=29_000).emit()


def start() -> None:
    """Measure a new process to its first token; kernels are compiled the first time, and cached the second."""
    script = (
        "from archerfish import LLM, SamplingParams;"
        f"llm = LLM({str(_SHAPES / 'llama-3.1-8b.json')!r}, load_format='dummy', skip_tokenizer_init=True);"
        "llm.generate([[5] * 16], SamplingParams(max_tokens=1), progress=False); print('token', flush=True)"
    )
    with tempfile.TemporaryDirectory() as cache:
        # For compiled kernels and measurements of the first start.
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        for what, goal in (("cold caches", 15), ("warm caches", 5)):
            started = time.perf_counter()
            command = [sys.executable, "-c", script]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == b"token\n", "no token came"
                seconds = time.perf_counter() - started  # The time that the process takes to end does not count.
            Row(
                row=f"Llama-3.1-8B, new process to first token, {what}, s", value=seconds, goal=goal, note="once"
            ).emit()


# -- groups -----------------------------------------------------------------------------------------------------------

_8B = "llama-3.1-8b"
_FP8: dict[str, Any] = {"quantization": "fp8", "kv_cache_dtype": "fp8"}


def slopes() -> None:
    slope("Llama-3.1-8B bfloat16", 34)
    slope("Llama-3.1-8B fp8 keys and values", 18, kv_cache_dtype="fp8")


MEASURES: dict[str, Callable[[], None]] = {
    "machine": machine,
    "8b": lambda: decode("Llama-3.1-8B bfloat16", _8B, 275),
    "1b": lambda: decode("Llama-3.2-1B bfloat16", "llama-3.2-1b", 1500),
    "0.6b": lambda: decode("Qwen3-0.6B bfloat16", "qwen3-0.6b", 1600),
    "fp8": lambda: decode("Llama-3.1-8B fp8", _8B, 480, quantization="fp8"),
    "int8": lambda: decode("Llama-3.1-8B int8", _8B, 480, quantization="int8"),
    "w8a8": lambda: decode("Llama-3.1-8B w8a8", _8B, 480, quantization="w8a8"),
    "int4": lambda: decode("Llama-3.1-8B int4 g128", _8B, 750, quantization="int4", quantization_group=128),
    "slope": slopes,
    "prefill": lambda: prefill("Llama-3.1-8B bfloat16", _8B, 8192, 60),
    "nano-vllm": nano_vllm,
    "invariance": measure_invariance,
    "start": start,
    # 256 answers of 1,024 tokens in 26 seconds.
    "qwen3-8b": lambda: offline("Qwen3-8B, 1024 in, 1024 out", "qwen3-8b", (1024, 1024), 256, 256 * 1024 / 26),
    "fp8-1000-1000": lambda: offline("Llama-3.1-8B fp8, 1000 in, 1000 out", _8B, (1000, 1000), 512, 17_700, **_FP8),
    "fp8-128-2048": lambda: offline("Llama-3.1-8B fp8, 128 in, 2048 out", _8B, (128, 2048), 512, 26_200, **_FP8),
}
assert MEASURES.keys() == GROUPS.keys()

if __name__ == "__main__":
    MEASURES[sys.argv[1]]()
