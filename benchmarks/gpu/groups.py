"""The rows of the table, by group: each prints a JSON line when it is measured. Values are medians of five."""

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from decoding import decode_seconds

from archerfish.bench.offline.measure import OfflineBench
from archerfish.bench.offline.workloads import OfflineWorkload, nano_vllm_workload, random_workload
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Assembly, build
from archerfish.ops.triton import products
from archerfish.request import SamplingParams

_SHAPES = Path(__file__).parent / "shapes"
_PEAK_FLOPS = 989e12
"""Of an H100 or H200 in bfloat16 without sparsity, as their maker says."""
_REPEATS = 5
_DRAWN = SamplingParams(temperature=0.8, ignore_eos=True)


def tell(row: str, value: float, goal: float | None = None, share: float | None = None, of: str = "") -> None:
    print(json.dumps({"row": row, "value": value, "goal": goal, "share": share, "of": of}), flush=True)


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


def median(measure: Callable[[], float]) -> float:
    measure()
    return statistics.median(measure() for _ in range(_REPEATS))


def read_bandwidth() -> float:
    """Bytes a second, of the fastest read there is: a sum over more than any cache holds."""
    numbers = torch.ones(2**31, dtype=torch.float32, device="cuda")
    return numbers.nbytes / median(lambda: _timed(numbers.sum))


def _timed(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def machine() -> None:
    tell("memory read, TB/s", read_bandwidth() / 1e12)
    source = torch.ones(2**30, device="cuda")
    target = torch.empty_like(source)
    seconds = median(lambda: _timed(lambda: target.copy_(source)))
    tell("memory copied, read and written, TB/s", 2 * source.nbytes / seconds / 1e12)
    square = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    seconds = median(lambda: _timed(lambda: square @ square))
    flops = 2 * 8192**3 / seconds
    tell("largest product in bfloat16, TFLOP/s", flops / 1e12, share=flops / _PEAK_FLOPS, of="of the maker's FLOP/s")


def decode(name: str, assembly: Assembly, goal: float, bandwidth: float) -> None:
    """One request, 128 tokens."""
    seconds = median(lambda: decode_seconds(assembly, 1, 128, steps=128, params=_DRAWN))
    cost = assembly.engine.cost
    assert cost is not None
    share = cost.weight_bytes(1, 1) / seconds / bandwidth
    tell(f"{name}, one request, tokens/s", 1 / seconds, goal, share, "of read bandwidth")


def slope(name: str, assembly: Assembly, goal: float) -> None:
    def seconds(context: int) -> float:
        return median(lambda: decode_seconds(assembly, 1, context, steps=32, params=_DRAWN))

    short, long = seconds(1_000), seconds(100_000)
    tell(f"{name}, a cached token adds to a step, ns", (long - short) / 99_000 * 1e9, goal)


def prefill(name: str, assembly: Assembly, length: int, goal: float) -> None:
    salts = iter(range(100))
    workload = random_workload(1, length, 1, 100_000, seed=0)
    bench = OfflineBench.of(assembly)
    seconds = median(lambda: bench.run(workload, cache_salt=str(next(salts))).seconds)
    cost = assembly.engine.cost
    assert cost is not None
    attention = sum(2 * 2 * layer.attention.q_width * length**2 / 2 for layer in assembly.arch.layers)
    share = (cost.token_flops * length + attention) / seconds / _PEAK_FLOPS
    tell(f"{name}, prompt of {length}, % of the maker's FLOP/s", 100 * share, goal)


def throughput(
    name: str, assembly: Assembly, workload: OfflineWorkload, goal: float, *, in_seconds: bool = False, repeats: int = 3
) -> None:
    bench = OfflineBench.of(assembly)
    seconds = [bench.run(workload, cache_salt=str(turn)).seconds for turn in range(repeats + 1)][1:]
    taken = statistics.median(seconds)
    if in_seconds:
        tell(f"{name}, seconds", taken, goal)
    else:
        tell(f"{name}, tokens/s", workload.num_output_tokens / taken, goal)


def group(name: str) -> None:
    bandwidth = 1.0 if name in ("machine", "start") else read_bandwidth()
    torch.cuda.empty_cache()
    match name:
        case "machine":
            machine()
        case "llama-3.1-8b":
            with engine("llama-3.1-8b", max_num_seqs=8, max_model_len=131072) as assembly:
                decode("Llama-3.1-8B bfloat16", assembly, 275, bandwidth)
                slope("Llama-3.1-8B bfloat16", assembly, 34)
                prefill("Llama-3.1-8B bfloat16", assembly, 8192, 60)
            with engine("llama-3.1-8b", max_num_seqs=8, max_model_len=131072, kv_cache_dtype="fp8") as assembly:
                slope("Llama-3.1-8B fp8 keys and values", assembly, 18)
        case "llama-3.2-1b":
            with engine("llama-3.2-1b", max_num_seqs=8, max_model_len=4096) as assembly:
                decode("Llama-3.2-1B bfloat16", assembly, 1500, bandwidth)
        case "qwen3-0.6b":
            with engine("qwen3-0.6b", max_num_seqs=256, max_model_len=4096) as assembly:
                decode("Qwen3-0.6B bfloat16", assembly, 1600, bandwidth)
                throughput("Qwen3-0.6B, nano-vllm's 256 requests", assembly, nano_vllm_workload(151936), 29_000)
        case "qwen3-8b":
            with engine("qwen3-8b", max_num_seqs=256, max_model_len=4096) as assembly:
                work = random_workload(256, 1024, 1024, 151936, seed=0)
                throughput("Qwen3-8B, 256 x 1024 in, 1024 out", assembly, work, 26, in_seconds=True, repeats=1)
        case "fp8":
            with engine("llama-3.1-8b", quantization="fp8", max_num_seqs=8, max_model_len=4096) as assembly:
                decode("Llama-3.1-8B fp8", assembly, 480, bandwidth)
            many: dict[str, Any] = {"kv_cache_dtype": "fp8", "max_num_seqs": 1024, "max_model_len": 4096}
            with engine("llama-3.1-8b", quantization="fp8", **many) as assembly:
                work = random_workload(1024, 1000, 1000, 128000, seed=0)
                throughput("Llama-3.1-8B fp8, 1000 in, 1000 out", assembly, work, 17_700, repeats=1)
        case "int4":
            few: dict[str, Any] = {"quantization_group": 128, "max_num_seqs": 8, "max_model_len": 4096}
            with engine("llama-3.1-8b", quantization="int4", **few) as assembly:
                decode("Llama-3.1-8B int4 in groups of 128", assembly, 750, bandwidth)
        case "start":
            start()
        case "invariance":
            invariance()


def start() -> None:
    """From a new process to the first token; kernels compiled the first time, found in a cache the second."""
    script = (
        "from archerfish import LLM, SamplingParams;"
        f"llm = LLM({str(_SHAPES / 'llama-3.1-8b.json')!r}, load_format='dummy', skip_tokenizer_init=True);"
        "llm.generate([[5] * 16], SamplingParams(max_tokens=1), progress=False); print('token', flush=True)"
    )
    with tempfile.TemporaryDirectory() as cache:
        # Of compiled kernels, and of what was measured at the first start.
        environment = {**os.environ, "TRITON_CACHE_DIR": cache}
        for what, goal in (("cold caches", 15), ("warm caches", 5)):
            started = time.perf_counter()
            command = [sys.executable, "-c", script]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as child:
                assert child.stdout is not None
                assert child.stdout.readline() == b"token\n", "no token came"
                seconds = time.perf_counter() - started  # How long it then takes to end is another question.
            tell(f"Llama-3.1-8B, new process to first token, {what}, s", seconds, goal)


def invariance() -> None:
    """Products of one row: ours against the fastest that does not care in which order it adds."""
    for shape, sizes in {
        "Llama-3.1-8B": [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)],
        "Llama-3.2-1B": [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)],
        "Qwen3-0.6B": [(4096, 1024), (1024, 2048), (6144, 1024), (1024, 3072)],
    }.items():
        ours = sum(_seconds_each(size, lambda x, weight: products.linear(x, weight, None)) for size in sizes)
        theirs = sum(_seconds_each(size, lambda x, weight: torch.mm(x, weight.t())) for size in sizes)
        tell(f"{shape}, products of a layer: slower than cuBLAS, %", 100 * (ours / theirs - 1), 3)


def _seconds_each(size: tuple[int, int], multiply: Callable[[torch.Tensor, torch.Tensor], Any]) -> float:
    """Of a product of one row, with more matrices in turn than any cache holds."""
    number = max(8, int(6e8 / size[0] / size[1]))
    weights = [torch.randn(size, device="cuda", dtype=torch.bfloat16) for _ in range(number)]
    x = torch.randn(1, size[1], device="cuda", dtype=torch.bfloat16)
    return _in_graph(lambda: [multiply(x, weight) for weight in weights]) / number


def _in_graph(work: Callable[[], Any]) -> float:
    work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()
    seconds = median(lambda: _timed(lambda: [graph.replay() for _ in range(5)]) / 5)
    del kept
    return seconds


if __name__ == "__main__":
    group(sys.argv[1])
