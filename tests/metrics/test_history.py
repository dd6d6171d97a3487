"""What is remembered of snapshots, and for how long."""

from typing import Any

from archerfish.metrics.history import History
from archerfish.metrics.service import ServiceMetrics


def snapshot(time: float) -> dict[str, Any]:
    return {**ServiceMetrics(clock=lambda: 5.0).snapshot(), "time": time}


def test_the_newest_samples_are_kept_as_they_are_in_the_snapshot() -> None:
    history = History(num_samples=3)
    assert history.samples() == []
    for time in range(5):
        history.add(snapshot(float(time)))
    samples = history.samples()
    assert [sample["time"] for sample in samples] == [2.0, 3.0, 4.0]
    whole = snapshot(4.0)
    assert samples[-1] == {
        "time": 4.0,
        "tokens": whole["tokens"],
        "requests": {"running": 0, "waiting": 0},
        "latency": {name: whole["latency"][name] for name in ("ttft_ms", "tpot_ms")},
    }


def test_what_is_handed_out_does_not_change_later() -> None:
    history = History()
    history.add(snapshot(1.0))
    before = history.samples()
    history.add(snapshot(2.0))
    assert len(before) == 1
