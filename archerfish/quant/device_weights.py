"""Quantizes weights for GPU kernels, on the device that the full weights are on."""

from torch import Tensor

from archerfish.ops.triton.device_weight import DeviceExperts, DeviceWeight, arrange_fp8, arrange_int4, arrange_int8
from archerfish.quant.feedback import InputStatistics
from archerfish.quant.formats import WeightFormat
from archerfish.quant.rounding import round_fp8, round_int4, round_int8


def device_weight(weight: Tensor, weight_format: WeightFormat, inputs: InputStatistics | None = None) -> DeviceWeight:
    """Quantize and pack [outputs, inputs]; int4 is rounded to nearest without statistics of the inputs."""
    assert inputs is None or weight_format.calibrated
    match weight_format.name:
        case "none":
            raise AssertionError("full weights are not packed")
        case "int8" | "w8a8" as name:
            return arrange_int8(*round_int8(weight), name, weight.dtype)
        case "int4":
            group = weight_format.group
            rounded = round_int4(weight, group, zero_points=weight_format.zero_points, inputs=inputs)
            return arrange_int4(*rounded, group, weight.dtype)
        case "fp8":
            return arrange_fp8(*round_fp8(weight), weight.dtype)


def device_experts(matrices: Tensor, weight_format: WeightFormat) -> DeviceExperts:
    """Quantize and pack [experts, outputs, inputs], each expert as it would be alone."""
    return DeviceExperts(num_experts=len(matrices), stacked=device_weight(matrices.flatten(0, 1), weight_format))
