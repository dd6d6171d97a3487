"""Prints how fast one GPU is with models of real shapes and random weights, and writes it as JSON.

    python benchmarks/gpu/run.py [--output FILE] [--only GROUP ...]

Each group of rows runs in a process of its own, so that none starts with another's memory or compiled kernels.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

GROUPS = ("machine", "llama-3.1-8b", "llama-3.2-1b", "qwen3-0.6b", "qwen3-8b", "fp8", "int4", "start", "invariance")
_HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("bench-gpu.json"))
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    options = parser.parse_args()
    rows = []
    print(f"{'':58} {'measured':>12} {'goal':>12}  of the peak", flush=True)
    for group in options.only:
        command = [sys.executable, str(_HERE / "groups.py"), group]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"row"')]
        if ran.returncode:
            print(f"{group}: failed\n{ran.stderr[-2000:]}", flush=True)
        for row in found:
            reached = "" if row["goal"] is None else f"{row['goal']:>12,.6g}"
            share = "" if row["share"] is None else f"{100 * row['share']:.0f} % {row['of']}"
            print(f"{row['row']:58} {row['value']:>12,.6g} {reached:>12}  {share}", flush=True)
        rows += found
    options.output.write_text(json.dumps(rows, indent=1))
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
