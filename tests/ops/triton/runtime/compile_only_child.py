"""Run by a test where kernels are compiled: prints which were compiled before `compile_only`, in it, and after it.

Without a GPU they are compiled for one all the same, and launching them does nothing.
"""

import json
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import driver
from triton.runtime.errors import OutOfResources

HOPPER = GPUTarget("cuda", 90, 32)


class NoDevice:
    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 232_448}

    def load_binary(self, *_: Any) -> tuple[int, ...]:
        return 0, 0, 0, 0, 1024


def refused(kernel: Any, x: torch.Tensor) -> bool:
    """Return whether a launch reports that it needs too many resources."""
    try:
        kernel(x)
    except OutOfResources:
        return True
    return False


class NoDriver(DriverBase):
    """As much of one as compiling takes."""

    utils = NoDevice()

    def launcher_cls(self, *_: Any) -> Any:
        return lambda *_: None

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_benchmarker(self) -> Any:
        raise AssertionError("nothing is measured")

    @classmethod
    def is_active(cls) -> bool:
        return True


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        driver.set_active(NoDriver())
        torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
        torch.cuda.get_device_name = lambda *_: "none"  # type: ignore[assignment]
        torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=132)  # type: ignore[assignment]
    compiled: list[str] = []
    triton.knobs.compilation.listener = lambda **event: compiled.append(event["src"].name)  # type: ignore[assignment]

    from archerfish.ops.signatures import LayerCache
    from archerfish.ops.triton import attention
    from archerfish.ops.triton.elementwise import row_ops as rows
    from archerfish.ops.triton.gemm.float_gemm import float_gemm_into
    from archerfish.ops.triton.gemm.float_tiles import FloatTiles
    from archerfish.ops.triton.graph import step_kernels as steps
    from archerfish.ops.triton.runtime import kernel_launch

    weight, buffer = (torch.zeros(shape, device=device).bfloat16() for shape in ((32, 64), (128,)))

    def attend() -> None:
        """Without any unit of work."""
        shape = attention.HeadShape(num_heads=2, num_kv_heads=1, head_dim=16)
        q, blocks = (torch.zeros(size, device=device).bfloat16() for size in ((3, 2, 16), (4, 16, 1, 16)))
        units, table = (torch.zeros(2, 8, dtype=torch.int32, device=device) for _ in range(2))
        unit_list = attention.UnitList(units, torch.zeros(1, dtype=torch.int32, device=device))
        attention.attend_into(
            torch.empty_like(q), q, LayerCache(blocks, blocks), attention.AttentionWork(unit_list, unit_list), table,
            attention.AttentionScratch.of(shape, 8, q.device), attention.Scoring(1.0, None, None),
        )  # fmt: skip

    def work() -> None:
        for num_rows in (1, 16, 2):
            x = torch.zeros(num_rows, 64, device=device).bfloat16()
            float_gemm_into(torch.empty(num_rows, 32, device=device).bfloat16(), x, weight, None)
        for first in (0, 1, 8):  # The second is no multiple of 16 bytes.
            rows.add_into(torch.empty_like(x[:1]), x[:1], buffer[None, first : first + 64], 1.0)
        steps.select_into(torch.empty_like(x), x, torch.zeros(num_rows, dtype=torch.int32, device=device))
        attend()

    kernel_launch.start_compiler().join()
    at_start = compiled.copy()
    with kernel_launch.compile_only(2):
        work()
    num_ahead = len(compiled)
    work()
    ahead, after = compiled[len(at_start) : num_ahead], compiled[num_ahead:]

    def too_large(x: torch.Tensor) -> None:
        tiles = FloatTiles(outputs=64, inputs=512, rows=64, num_warps=4, num_stages=8)
        float_gemm_into(torch.empty(len(x), 4096, device=device).bfloat16(), x, matrix, None, tiles=tiles)

    matrix, x = (torch.zeros(shape, device=device).bfloat16() for shape in ((4096, 4096), (64, 4096)))
    with kernel_launch.compile_only(2):
        too_large(x)
    with kernel_launch.compile_only(2):
        work()
    print(json.dumps({"at_start": at_start, "ahead": ahead, "after": after, "refused": refused(too_large, x)}))


if __name__ == "__main__":
    main()
