"""A short soak, so that its driver works when it is needed; and that it would notice what it looks for."""

import asyncio

import pytest

from tests.attack.soak.expected import compute
from tests.attack.soak.ledger import LEAST_SAMPLES, Ledger
from tests.attack.soak.soak import soak

SECONDS = 20.0


@pytest.mark.full
def test_a_short_soak_finds_nothing() -> None:
    ledger = asyncio.run(soak(SECONDS, compute()))
    # Twenty seconds on a machine that does other things say nothing of memory.
    bad = [finding for finding in ledger.findings() if not finding.is_good and not finding.what.startswith("memory")]
    assert not bad, (bad, ledger)
    assert sum(ledger.killed.values()) >= 1, ledger.killed


def test_each_failure_alone_makes_the_verdict_bad() -> None:
    def good() -> Ledger:
        ledger = Ledger(num_batches=1, num_lines=60, memory={"engine": [300.0] * LEAST_SAMPLES})
        ledger.answered["stream"] += 1
        return ledger

    assert good().is_good
    for failures in ("wrong", "lost", "doubled", "refused", "leftovers"):
        ledger = good()
        ledger.note(getattr(ledger, failures), "one")
        assert not ledger.is_good
    for grown, is_good in ((1.02, True), (1.05, False)):
        ledger = good()
        ledger.memory["engine"] = [300.0 * (1 + (grown - 1) * i / LEAST_SAMPLES) for i in range(LEAST_SAMPLES)]
        assert ledger.is_good is is_good, ledger.growth("engine")
    ledger = good()
    ledger.num_batches = 0
    assert not ledger.is_good
