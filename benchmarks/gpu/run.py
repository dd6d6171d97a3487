"""Prints how fast one GPU is with models of real shapes and random weights, and writes it as JSON.

    python benchmarks/gpu/run.py [--output FILE] [--only GROUP ...] [--limit SECONDS]

Each group of rows runs in a process of its own, so that none starts with another's memory. A row is printed and written
when it is measured: whatever ends the run, what was measured before is there.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from names import GROUPS

_HERE = Path(__file__).parent
_SHOWN = 2000  # Last characters of a failed group's standard error that are shown.


def main() -> None:
    known = "\n".join(f"  {name:14} {what}" for name, what in GROUPS.items())
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\ngroups:\n{known}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("bench-gpu.json"))
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a group may take")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    failures = 0
    print(f"{'':64} {'measured':>12} {'goal':>10}", flush=True)
    for group in options.only:
        started = time.monotonic()
        try:
            for row in _measured(group, options.limit):
                print(_line(row), flush=True)
                rows.append({"group": group, **row})
                options.output.write_text(json.dumps(rows, indent=1))
        except _Failed as failed:
            failures += 1
            print(f"{group}: {failed}", flush=True)
        print(f"  ({group}: {time.monotonic() - started:.0f} s)", flush=True)
    print(f"{len(rows)} rows written to {options.output}, {failures} groups failed")
    sys.exit(1 if failures else 0)


class _Failed(Exception):
    """A group failed or took too long."""


def _measured(group: str, limit: float) -> Iterator[dict[str, Any]]:
    """Yield a group's rows as they are measured."""
    command = [sys.executable, str(_HERE / "groups.py"), group]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
        timer = threading.Timer(limit, process.kill)
        timer.start()
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"row"'):
                yield json.loads(line)
        code = process.wait()
        took_too_long = timer.finished.is_set()
        timer.cancel()
        if took_too_long:
            raise _Failed(f"ended after {limit:.0f} s; see --limit")
        if code:
            said.seek(0)
            raise _Failed(f"failed\n{said.read()[-_SHOWN:]}")


def _line(row: dict[str, Any]) -> str:
    goal = "" if row["goal"] is None else f"{row['goal']:,.6g}"
    shares = [f"{name.upper()} {100 * row[name]:.0f} %" for name in ("mbu", "mfu") if row[name] is not None]
    details = ", ".join([*shares, *([row["note"]] if row["note"] else [])])
    return f"{row['row']:64} {row['value']:>12,.6g} {goal:>10}  {details}"


if __name__ == "__main__":
    main()
