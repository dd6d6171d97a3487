"""Our engine beside llama.cpp and OpenVINO on this CPU, in one run: python benchmarks/cpu_peers/run.py [--folder DIR].

Peers live in an environment of their own, made the first time; models have real shapes and random weights. Every engine
runs alone in a fresh process, in turns, and of all turns the best counts. Nothing else should run meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from archerfish.machine.measure import read_bandwidth

HERE = Path(__file__).parent
PEERS = ("llamacpp", "openvino")
FORMATS = {8: "int8", 4: "int4"}
TURNS = 2
PEAK_SHARE = {8: 0.85, 4: 0.80}
GOALS = {("decode", 8): 1.8, ("decode", 4): 2.0, ("prefill", 8): 3.0, ("prefill", 4): 3.0, ("many", 8): 3.0}
"""Times the best peer; of prefill without matrix tiles, with them 5 and then 10."""

console = Console()


@dataclass(frozen=True)
class Row:
    what: str
    ours: float
    unit: str
    peers: dict[str, float]
    goal: float
    reached: float
    """What the goal is about: times the best peer, or a share."""


# -- engines ----------------------------------------------------------------------------------------------------------


def peer(folder: Path, name: str, shape: str, bits: int, *, many: bool) -> dict[str, float]:
    command = [folder / "peers/bin/python", HERE / "peer.py", name, folder / shape, f"--bits={bits}"]
    # Some virtual machines promise matrix tiles and fault at them.
    settings = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
    return _told([*map(str, command), *(["--many"] if many else [])], settings)


def ours(*arguments: str) -> dict[str, Any]:
    return _told([sys.executable, "-m", "archerfish", "bench", *arguments, "--json"])


def one_request(shape: str, bits: int, *more: str) -> dict[str, float]:
    told = ours(
        *("latency", "--model", str(HERE / f"shapes/{shape}.json"), "--load-format", "dummy"),
        *("--quantization", FORMATS[bits], "--batch-size", "1", "--input-len", "512", "--output-len", "49"),
        *("--num-iters", "4", "--num-iters-warmup", "1", "--max-model-len", "1024", "--max-num-seqs", "1", *more),
    )
    result = told["result"]
    return {"prefill": 512 / result["ttft"]["smallest"], "decode": 1 / result["tpot"]["smallest"]}


def many_requests(shape: str, bits: int) -> dict[str, float]:
    told = ours(
        *("throughput", "--model", str(HERE / f"shapes/{shape}.json"), "--load-format", "dummy"),
        *("--quantization", FORMATS[bits], "--num-prompts", "8", "--input-len", "256", "--output-len", "128"),
        *("--max-model-len", "1024", "--max-num-seqs", "8"),
    )
    return {"many": told["result"]["output_tokens_per_second"]}


def _told(command: Sequence[str], environment: dict[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    told: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return told


# -- rows -------------------------------------------------------------------------------------------------------------


def side_by_side(folder: Path, shape: str, bits: int, *, many: bool) -> list[Row]:
    """In turns, so that what the machine does meanwhile happens to all; the best of each."""
    best: dict[str, dict[str, float]] = {name: {} for name in ("ours", *PEERS)}
    for _ in range(TURNS):
        for name, known in best.items():
            if name != "ours":
                found = peer(folder, name, shape, bits, many=many)
            else:
                found = many_requests(shape, bits) if many else one_request(shape, bits)
            known.update({what: max(value, known.get(what, 0.0)) for what, value in found.items()})
    rows = []
    for what, value in best["ours"].items():
        others = {name: best[name][what] for name in PEERS}
        label = {"many": "8 requests, 256 in, 128 out", "prefill": "prefill 512", "decode": "decode at 512"}[what]
        reached, goal = value / max(others.values()), GOALS[what, bits]
        rows.append(Row(f"{shape} {FORMATS[bits]}: {label}", value, "tokens/s", others, goal, reached))
    return rows


def bandwidth_row(decode: float, bits: int) -> Row:
    """Of what a step must read: all weights and the keys and values of 512 tokens."""
    bandwidth = read_bandwidth(1 << 30, num_threads=2, seconds=3.0)
    layer_weights, head_weights = 973_078_528, 262_668_288
    layer_bytes = {8: 1.0, 4: 0.5 + 2 / 64}[bits]
    needed = layer_weights * layer_bytes + head_weights + 512 * 16 * 2 * 8 * 64 * 2
    share = decode * needed / bandwidth
    what = f"l1b {FORMATS[bits]}: share of read bandwidth ({bandwidth / 1e9:.1f} GB/s)"
    return Row(what, decode * needed / 1e9, "GB/s", {}, PEAK_SHARE[bits], share)


def neighbour_row(quiet: float) -> Row:
    with busy_neighbour():
        beside = one_request("l1b", 8)["decode"]
    return Row("l1b int8: decode beside one busy process", beside, "tokens/s", {}, 0.4, beside / quiet)


def perch_rows() -> list[Row]:
    rows = []
    for name in ("none", "int8", "int4"):
        told = ours(
            *("latency", "--quantization", name, "--batch-size", "1", "--input-len", "32", "--output-len", "256"),
            *("--num-iters", "5", "--num-iters-warmup", "1", "--max-num-seqs", "1"),
        )
        speed = 1 / told["result"]["tpot"]["smallest"]
        rows.append(Row(f"perch {name}, one request", speed, "tokens/s", {}, 2500, speed))
    return rows


def memory_row(num_requests: int) -> Row:
    told = _told([sys.executable, str(HERE / "memory.py"), str(HERE / "shapes/l1b.json"), str(num_requests)])
    share = told["resident"] / (told["weights"] + told["kv"])
    what = f"l1b int4: resident, times weights and KV of {num_requests} x 2,048 tokens"
    return Row(what, told["resident"] / 1e6, "MB", {}, 1.15, share)


@contextmanager
def busy_neighbour() -> Any:
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


# -- all of it --------------------------------------------------------------------------------------------------------


def prepare(folder: Path) -> None:
    if not (folder / "peers/.ready").exists():
        console.print("making the peers' environment (about a quarter of an hour)")
        subprocess.run([HERE / "environment.sh", folder / "peers"], check=True)
    for shape in ("smol135", "l1b"):
        if not (folder / shape / "model.safetensors").exists():
            python = folder / "peers/bin/python"
            subprocess.run([python, HERE / "checkpoint.py", HERE / f"shapes/{shape}.json", folder / shape], check=True)


def measure(folder: Path) -> list[Row]:
    rows: list[Row] = []
    tasks = [(shape, bits, False) for shape in ("l1b", "smol135") for bits in (8, 4)] + [("l1b", 8, True)]
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("measuring", total=len(tasks) + 5)
        for shape, bits, many in tasks:
            progress.update(bar, description=f"{shape} {FORMATS[bits]}{', eight requests' if many else ''}")
            found = side_by_side(folder, shape, bits, many=many)
            if shape == "l1b" and not many:
                decode = next(row.ours for row in found if "decode" in row.what)
                found.append(bandwidth_row(decode, bits))
                progress.advance(bar)
                if bits == 8:
                    found.append(neighbour_row(decode))
                    progress.advance(bar)
            rows += found
            progress.advance(bar)
        rows += perch_rows()
        progress.advance(bar)
        rows += [memory_row(num_requests) for num_requests in (1, 8)]
    return rows


def show(rows: list[Row]) -> None:
    table = Table("", "ours", *PEERS, "reached", "goal", box=None)
    for row in rows:
        others = [f"{row.peers[name]:,.1f}" if name in row.peers else "" for name in PEERS]
        is_cost = "resident" in row.what
        good = row.reached <= row.goal if is_cost else row.reached >= row.goal
        kind = "x" if row.peers or is_cost else ""
        reached = f"[{'green' if good else 'red'}]{row.reached:,.2f}{kind}"
        table.add_row(row.what, f"{row.ours:,.1f} {row.unit}", *others, reached, f"{row.goal:,.2f}{kind}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder", type=Path, default=HERE.parents[1] / "build/cpu_peers", help="what is made stays here"
    )
    parser.add_argument("--output", type=Path, help="JSON")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    prepare(asked.folder)
    rows = measure(asked.folder)
    show(rows)
    if asked.output:
        asked.output.write_text(json.dumps([asdict(row) for row in rows], indent=2))


if __name__ == "__main__":
    main()
