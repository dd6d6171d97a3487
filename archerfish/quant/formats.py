"""Run-time formats of weights, keys and values."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from archerfish.ops.dtypes import torch_dtype
from archerfish.ops.packed import PackedWeight, pack_floats, pack_int4, pack_int8
from archerfish.quant.feedback import InputStatistics
from archerfish.quant.rounding import round_int4, round_int8

Name = Literal["none", "int8", "w8a8", "int4", "fp8"]

_ACTIVATION_GROUPS = (128, 64, 32)
_SCALE_BYTES = 2  # float16, one for each group of int4.
_KV_SCALE_BYTES = 4  # float32, one for each head of a token.


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """The format of the matrices of a model's layers. Norms and biases stay float32."""

    name: Name
    group: int = 64
    """int4: number of inputs that share a scale."""
    zero_points: bool = False
    """int4: groups have a zero point instead of being symmetric around 0."""
    calibrated: bool = False
    """int4: rounded with statistics of the inputs of each matrix, which packing needs."""

    @property
    def is_lossy(self) -> bool:
        return self.name != "none"

    @property
    def of_vocabulary(self) -> "WeightFormat":
        """Return the format of embedding and head, int8 for int4.

        With int4, rounded to nearest, the perplexity of perch rose by 15.6 % instead of 11.2.
        """
        return WeightFormat(name="int8") if self.name == "int4" else self

    def bytes_per_weight(self, full: int) -> float:
        """Return bytes per weight, given the bytes of a number that is not quantized."""
        match self.name:
            case "none":
                return full
            case "int8" | "w8a8" | "fp8":
                return 1.0
            case "int4":
                return 0.5 + (_SCALE_BYTES + self.zero_points) / self.group

    def __str__(self) -> str:
        if self.name != "int4":
            return self.name + (" (lossy)" if self.is_lossy else "")
        rounded = "calibrated" if self.calibrated else "rounded to nearest"
        return f"int4 (lossy, {rounded}) in groups of {self.group}{' with zero points' if self.zero_points else ''}"

    def pack(self, weight: Tensor, inputs: InputStatistics | None = None) -> PackedWeight:
        """Quantize and pack [outputs, inputs]; int4 is rounded to nearest without statistics of the inputs."""
        assert inputs is None or self.calibrated
        match self.name:
            case "none":
                return pack_floats(weight)
            case "int8":
                return pack_int8(*round_int8(weight), _activation_group(weight.shape[1]))
            case "w8a8":
                # One scale for a whole row of activations is fastest, and least accurate where there are outliers.
                return pack_int8(*round_int8(weight), -(-weight.shape[1] // 64) * 64)
            case "int4":
                values, scales, zeros = round_int4(weight, self.group, zero_points=self.zero_points, inputs=inputs)
                return pack_int4(values, scales, zeros, self.group)
            case "fp8":
                raise AssertionError("native kernels do not support fp8")


@dataclass(frozen=True, slots=True)
class KvFormat:
    """The format of keys and values in the cache."""

    name: str
    """float32, bfloat16, float16 or int8."""
    of_model: str
    """The number format of the model."""

    @property
    def is_lossy(self) -> bool:
        return self.name not in (self.of_model, "float32")

    def bytes_per_value(self, head_dim: int) -> float:
        """Return bytes per number, with its share of the scale of a head."""
        scale = _KV_SCALE_BYTES / head_dim if self.name == "int8" else 0.0
        return torch_dtype(self.name).itemsize + scale

    def __str__(self) -> str:
        return self.name + (" (lossy)" if self.is_lossy else "")


def _activation_group(num_inputs: int) -> int:
    """Return the largest group that needs no padding."""
    return next((group for group in _ACTIVATION_GROUPS if num_inputs % group == 0), _ACTIVATION_GROUPS[-1])
