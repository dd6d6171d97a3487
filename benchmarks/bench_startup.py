"""What a start costs beyond importing torch: loading a model and its first token, each time in a fresh process."""

import argparse
import json
import subprocess
import sys
import time
from typing import NamedTuple

from workbench import show

from archerfish.box import DEFAULT_MODEL, models_in_box

BAR = 2.0  # Seconds beyond torch, for the box's default model on two cores.
PROMPT = "Once upon a time"

# Archerfish comes before torch, as in a program that imports only it: it sets what torch's threads read once.
SCRIPT = f"""
import json, sys, time
marks = [time.perf_counter()]
import archerfish
marks.append(time.perf_counter())
import torch
marks.append(time.perf_counter())
from archerfish import LLM, SamplingParams
marks.append(time.perf_counter())
llm = LLM(*sys.argv[1:])
marks.append(time.perf_counter())
next(llm.stream({PROMPT!r}, SamplingParams(max_tokens=1)))
marks.append(time.perf_counter())
print(json.dumps([after - before for before, after in zip(marks, marks[1:])]))
"""


class Start(NamedTuple):
    """Seconds of one start, in the order in which they pass."""

    package: float
    torch: float
    engine: float
    load: float
    first_token: float

    @property
    def beyond_torch(self) -> float:
        return sum(self) - self.torch


def fresh_python(*arguments: str) -> str:
    """What a new interpreter writes to standard output; its complaint ends the benchmark."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return done.stdout


def start_in_python(model: str | None) -> Start:
    return Start(*json.loads(fresh_python("-c", SCRIPT, *([] if model is None else [model]))))


def run_command(model: str | None) -> float:
    """Seconds of the process's whole life: interpreter, torch, the answer, and the way out."""
    named = [] if model is None else ["--model", model]
    started = time.perf_counter()
    fresh_python("-m", "archerfish", "generate", PROMPT, "--max-tokens", "1", *named)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help=f"directory or name; without it, the box's {DEFAULT_MODEL}")
    parser.add_argument("--repeats", type=int, default=5, help="starts of each kind, of which the best counts")
    options = parser.parse_args()
    if options.model is None and DEFAULT_MODEL not in models_in_box():
        print(f"start-up: not measured, {DEFAULT_MODEL} is not in the box; give --model")
        return
    start_in_python(options.model)  # Brings the files into the page cache: a disk's speed is not ours.
    # By turns, and the best of a few: what others do on the machine only ever adds.
    runs = [(start_in_python(options.model), run_command(options.model)) for _ in range(max(1, options.repeats))]
    best = min((start for start, _ in runs), key=lambda start: start.beyond_torch)
    torch = min(start.torch for start, _ in runs)
    command = min(seconds for _, seconds in runs)
    rows = [
        ("import torch", f"{torch:.2f}", ""),
        ("import archerfish", f"{best.package + best.engine:.2f}", ""),
        ("LLM(): load the model", f"{best.load:.2f}", ""),
        ("first token", f"{best.first_token:.2f}", ""),
        ("in Python, beyond torch", f"{best.beyond_torch:.2f}", f"{BAR:.2f}"),
        ("archerfish generate, whole", f"{command:.2f}", ""),
        ("archerfish generate, beyond torch", f"{command - torch:.2f}", f"{BAR:.2f}"),
    ]
    show(f"Start of {options.model or DEFAULT_MODEL}, best of {len(runs)}", ("part", "seconds", "bar"), rows)


if __name__ == "__main__":
    main()
