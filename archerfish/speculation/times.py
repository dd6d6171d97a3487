"""How long a step takes for the tokens in it, learned from the steps that were made. Knows no clock."""

import bisect

_GUESSED_SLOPE = 0.2
"""What one token more adds to a step of one token, before anything was measured: more than on most machines."""
_WEIGHT = 0.1
"""Of a new measurement against what is known of its size."""
_FEW = 16
"""Up to so many tokens each number has its own time; beyond, sizes that differ by an eighth share one."""


class StepTimes:
    """Seconds by the number of tokens: measured where there were steps, a line between them and beyond."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._curve: tuple[list[int], list[float]] | None = None
        """Sizes and seconds that never fall, made when they are asked for."""

    def __bool__(self) -> bool:
        return bool(self._seconds)

    def record(self, num_tokens: int, seconds: float) -> None:
        size = _size(num_tokens)
        # A step of this size as its mean would be, had it exactly so many tokens.
        seconds *= size / num_tokens if num_tokens > _FEW else 1.0
        before = self._seconds.get(size)
        self._seconds[size] = seconds if before is None else before + _WEIGHT * (seconds - before)
        self._curve = None

    def of(self, num_tokens: int) -> float:
        """Seconds of a step with so many tokens. Something must have been recorded."""
        sizes, seconds = self._curve or self._made()
        place = bisect.bisect_left(sizes, num_tokens)
        if place < len(sizes) and sizes[place] == num_tokens:
            return seconds[place]
        if 0 < place < len(sizes):
            below, above = sizes[place - 1], sizes[place]
            share = (num_tokens - below) / (above - below)
            return seconds[place - 1] + share * (seconds[place] - seconds[place - 1])
        known = 0 if place == 0 else len(sizes) - 1
        return seconds[known] * (1 + self._slope(known) * (num_tokens - sizes[known]))

    def _made(self) -> tuple[list[int], list[float]]:
        """More tokens never take less time: neighbours that say so are noise, and have their mean."""
        sizes = sorted(self._seconds)
        pools: list[list[float]] = []  # Mean and number of sizes that have it.
        for size in sizes:
            pools.append([self._seconds[size], 1.0])
            while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
                mean, count = pools.pop()
                total = pools[-1][1] + count
                pools[-1] = [(pools[-1][0] * pools[-1][1] + mean * count) / total, total]
        seconds = [mean for mean, count in pools for _ in range(int(count))]
        self._curve = (sizes, seconds)
        return self._curve

    def _slope(self, known: int) -> float:
        """What a token more adds beyond the smallest or largest size that was seen, as a share of its time."""
        sizes, seconds = self._curve or self._made()
        if len(sizes) == 1:
            return _GUESSED_SLOPE / (1 + _GUESSED_SLOPE * (sizes[0] - 1))
        one, other = (0, 1) if known == 0 else (known - 1, known)
        return (seconds[other] - seconds[one]) / (sizes[other] - sizes[one]) / seconds[known]


def _size(num_tokens: int) -> int:
    """The size that a number of tokens is counted as."""
    if num_tokens <= _FEW:
        return num_tokens
    grain = 1 << max(0, num_tokens.bit_length() - 4)
    return num_tokens // grain * grain
