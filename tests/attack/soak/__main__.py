"""python -m tests.attack.soak: progress while it runs, a verdict at the end, and an exit code that says the same."""

import asyncio
import os
import signal
import sys

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from tests.attack.soak.expected import Expected, compute
from tests.attack.soak.ledger import Ledger
from tests.attack.soak.soak import OnProgress, soak

_SECONDS = 600.0


def main() -> int:
    seconds = _seconds()
    console = Console(stderr=True)
    console.print("computing the expected answers offline")
    expected = compute()
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        ledger = asyncio.run(
            _soak(seconds, expected, lambda elapsed, so_far: live.update(_progress(elapsed, seconds, so_far)))
        )
    _print_verdict(console, ledger)
    return 0 if ledger.is_good else 1


async def _soak(seconds: float, expected: Expected, on_progress: OnProgress) -> Ledger:
    """Asked to stop, it ends what it has started."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await soak(seconds, expected, on_progress=on_progress)


def _seconds() -> float:
    given = os.environ.get("SOAK_SECONDS", "")
    try:
        seconds = float(given or _SECONDS)
    except ValueError:
        seconds = 0.0
    if not 10 <= seconds <= 86_400:
        sys.exit(f"SOAK_SECONDS = {given!r} must be a number of seconds from 10 to 86400")
    return seconds


def _progress(elapsed: float, seconds: float, ledger: Ledger) -> Group:
    phase = f"{min(elapsed, seconds):.0f} of {seconds:.0f} s"
    if elapsed >= seconds:
        phase += ", waiting for the last batches"
    return Group(ProgressBar(total=seconds, completed=min(elapsed, seconds), width=60), phase, _counts(ledger))


def _counts(ledger: Ledger) -> Table:
    table = Table("kind", "answered", "cut off by a kill", box=None)
    for kind in sorted(ledger.answered | ledger.excused):
        table.add_row(kind, f"{ledger.answered[kind]:,}", f"{ledger.excused[kind]:,}")
    table.add_row("batch lines", f"{ledger.num_lines:,}", "")
    kills = ", ".join(f"{count} x {what}" for what, count in ledger.killed.items()) or "none yet"
    failures = len(ledger.wrong) + len(ledger.lost) + len(ledger.doubled) + len(ledger.refused)
    table.add_row("kills", kills, "")
    table.add_row("failures", str(failures), "")
    return table


def _print_verdict(console: Console, ledger: Ledger) -> None:
    console.print(_counts(ledger))
    table = Table("verdict", "found", "")
    for finding in ledger.findings():
        table.add_row(finding.what, finding.found, "[green]good[/]" if finding.is_good else "[red]bad[/]")
    console.print(table)
    for failures in (ledger.wrong, ledger.lost, ledger.doubled, ledger.refused, ledger.leftovers):
        for words in failures:
            if words != "...":
                console.print(words, markup=False, highlight=False)


if __name__ == "__main__":
    sys.exit(main())
