"""The last minutes of a service, a sample a second: what the live page draws over time. Measures nothing."""

from collections import deque
from collections.abc import Mapping
from typing import Any

SECONDS_BETWEEN_SAMPLES = 1.0
_NUM_SAMPLES = 300
_DRAWN = {"tokens": ("prompt_per_s", "generated_per_s"), "requests": ("running", "waiting")}
_LATENCIES = ("ttft_ms", "tpot_ms")


class History:
    """The newest samples; older ones are forgotten."""

    def __init__(self, num_samples: int = _NUM_SAMPLES) -> None:
        self._samples: deque[dict[str, Any]] = deque(maxlen=num_samples)

    def add(self, snapshot: Mapping[str, Any]) -> None:
        """Keep of a snapshot what is drawn over time, as it is in the snapshot."""
        sample: dict[str, Any] = {"time": snapshot["time"]}
        for field, names in (*_DRAWN.items(), ("latency", _LATENCIES)):
            sample[field] = {name: snapshot[field][name] for name in names}
        self._samples.append(sample)

    def samples(self) -> list[dict[str, Any]]:
        """The oldest first. Ready to become JSON."""
        return list(self._samples)
