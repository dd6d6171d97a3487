"""Rotary position embedding in numbers: which frequencies, and how a longer context stretches them."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]


class Rotation(NamedTuple):
    frequencies: list[float]
    """Radians per position, one for each pair of dimensions."""
    magnitude: float
    """Factor of sines and cosines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """The parameters of a rotation. Fields that a kind does not use have their defaults."""

    theta: float
    dim: int
    """Dimensions of a head that are rotated; the rest is unchanged."""
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    """Context of the first training, before it was stretched."""
    attention_factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()

    def rotation(self, max_model_len: int) -> Rotation:
        """Return the rotation for an engine that serves contexts up to max_model_len.

        Dynamic and longrope depend on the length. It is the engine's, not the current sequence's: cached keys could not
        be rotated again, and a request must not change with its neighbours.
        """
        plain = [self.theta ** (-2 * i / self.dim) for i in range(self.dim // 2)]
        if self.kind == "linear":
            return Rotation([f / self.factor for f in plain], 1.0)
        if self.kind == "dynamic":
            return Rotation(self._dynamic(max_model_len), 1.0)
        if self.kind == "llama3":
            return Rotation([self._llama3(f) for f in plain], 1.0)
        if self.kind == "yarn":
            return Rotation(self._yarn(plain), self._yarn_magnitude())
        if self.kind == "longrope":
            return self._longrope(plain, max_model_len)
        return Rotation(plain, 1.0)

    def _dynamic(self, max_model_len: int) -> list[float]:
        length = max(max_model_len, self.original_max_positions)
        stretch = self.factor * length / self.original_max_positions - (self.factor - 1)
        theta = self.theta * stretch ** (self.dim / (self.dim - 2))
        return [float(theta ** (-2 * i / self.dim)) for i in range(self.dim // 2)]

    def _llama3(self, frequency: float) -> float:
        """Long waves are stretched by the factor, short ones are unchanged, those between are blended."""
        turns = self.original_max_positions * frequency / (2 * math.pi)
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        blend = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - blend) * frequency / self.factor + blend * frequency

    def _yarn(self, plain: list[float]) -> list[float]:
        def dimension(num_turns: float) -> float:
            """Return where a pair completes num_turns turns over the original context."""
            length = self.original_max_positions / (num_turns * 2 * math.pi)
            return self.dim * math.log(length) / (2 * math.log(self.theta))

        low, high = dimension(self.beta_fast), dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        if low == high:
            high += 0.001  # A ramp needs some width.
        stretched = []
        for i, frequency in enumerate(plain):
            ramp = min(max((i - low) / (high - low), 0.0), 1.0)
            stretched.append(frequency / self.factor * ramp + frequency * (1 - ramp))
        return stretched

    def _yarn_magnitude(self) -> float:
        def magnitude(mscale: float) -> float:
            return 1.0 if self.factor <= 1 else 0.1 * mscale * math.log(self.factor) + 1.0

        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return magnitude(self.mscale) / magnitude(self.mscale_all_dim)
        return magnitude(1.0)

    def _longrope(self, plain: list[float], max_model_len: int) -> Rotation:
        factors = self.long_factor if max_model_len > self.original_max_positions else self.short_factor
        magnitude = self.attention_factor
        if magnitude is None:
            magnitude = 1.0
            if self.factor > 1:
                magnitude = math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_positions))
        return Rotation([f / factor for f, factor in zip(plain, factors, strict=True)], magnitude)
