"""The curves of the trainings: reads their logs, draws the picture. Knows nothing of the card it goes into."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOMAINS = {
    "simplewiki_val": "Simple English Wikipedia",
    "gutenberg_children_val": "Children's books",
    "tinystories_val": "Short stories",
    "wikitext2_test": "WikiText-2",
}
"""Held-out texts by the name of their measure."""

# Distinguishable with colour blindness (Okabe and Ito).
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
_LOSS_COLOUR, _DIVERGENCE_COLOUR = "#333333", "#E69F00"
_PANELS = {"perch": ["perch-main", "perch"], "minnow": ["minnow-main", "minnow-plain", "minnow"]}
_LOSS_POINTS, _HELD_OUT_POINTS = 60, 25  # Points of a curve, at most; more would only enlarge the file.

Points = Sequence[tuple[float, float]]


class MissingMeasurement(Exception):
    """Raised if a measurement is missing or incomplete, with the step that makes it."""


def require(names: Iterable[str], values: Mapping[str, Any], where: str, step: str) -> None:
    missing = [name for name in names if name not in values]
    if missing:
        raise MissingMeasurement(f"{where} has no {', no '.join(missing)}; run {step}")


@dataclass(frozen=True)
class Run:
    """One training as recorded in its log."""

    plan: Mapping[str, Any]
    points: Sequence[Mapping[str, Any]]

    @property
    def num_tokens(self) -> int:
        return int(self.points[-1]["tokens"])

    @property
    def seconds(self) -> float:
        return float(self.points[-1]["seconds"])

    def losses(self) -> Points:
        return [(point["tokens"], point["loss"]) for point in self.points]

    def held_out(self, domain: str) -> Points:
        """(tokens, bits per byte) of each evaluation during the training."""
        measured = [point for point in self.points if domain in point.get("held_out", {})]
        return [(point["tokens"], point["held_out"][domain]) for point in measured]


def read_run(path: Path, step: str) -> Run:
    """Read a log. A plan starts a new training; a resumed one repeats the steps after its last checkpoint."""
    plan: dict[str, Any] = {}
    points: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if "plan" in entry:
            plan, points = entry["plan"], []
            continue
        require(("step", "tokens", "seconds", "loss"), entry, path.name, step)
        points = [*(point for point in points if point["step"] < entry["step"]), entry]
    require(("num_steps", "tokens_a_step", "device"), plan, path.name, step)
    done = points[-1]["step"] if points else 0
    if done < plan["num_steps"]:
        raise MissingMeasurement(f"{path.name} ends at step {done} of {plan['num_steps']}; run {step}")
    return Run(plan, points)


def draw_curves(runs: Mapping[str, Run], path: Path) -> None:
    """Loss above, held-out bits per byte below; perch on the left, minnow on the right with both its last phases."""
    import matplotlib
    from matplotlib.figure import Figure

    # Text stays text and ids do not change from one drawing to the next: a small file, and small differences.
    style: Any = {"svg.fonttype": "none", "svg.hashsalt": "box", "font.size": 9}
    style["font.sans-serif"] = ["DejaVu Sans", "Arial"]
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(10, 6), facecolor="white", layout="constrained")
        panels = figure.subplots(2, 2, sharex="col", sharey="row")
        for column, (title, names) in enumerate(_PANELS.items()):
            chosen = {name: runs[name] for name in names}
            _draw_losses(panels[0][column], chosen)
            _draw_held_out(panels[1][column], chosen)
            panels[0][column].set_title(title)
            panels[1][column].set_xlabel("tokens seen, billions")
        panels[0][0].set_ylabel("training loss, nats per token")
        losses = [y for run in runs.values() for y in _settled(run, thinned(run.losses(), _LOSS_POINTS))]
        panels[0][0].set_ylim(0, 1.05 * max(losses))
        panels[1][0].set_ylabel("held out, bits per byte")
        bits = [y for run in runs.values() for domain in DOMAINS for y in _settled(run, run.held_out(domain))]
        if bits:
            # Space above for the legend, below for the name of the phase.
            panels[1][0].set_ylim(min(bits) - 0.15, max(bits) + 0.4)
        figure.savefig(path, metadata={"Date": None})


def _draw_losses(panel: "Axes", runs: Mapping[str, Run]) -> None:
    for name, run in runs.items():
        distilled = name == "minnow"
        label = "divergence from perch" if distilled else "loss on the texts" if name.endswith("-main") else None
        colour = _DIVERGENCE_COLOUR if distilled else _LOSS_COLOUR
        _draw(panel, runs, name, thinned(run.losses(), _LOSS_POINTS), color=colour, label=label)
    _finish(panel, runs)


def _draw_held_out(panel: "Axes", runs: Mapping[str, Run]) -> None:
    [main] = [run for name, run in runs.items() if name.endswith("-main")]
    for (domain, label), colour in zip(DOMAINS.items(), _COLOURS, strict=True):
        for name, run in runs.items():
            points = thinned(run.held_out(domain), _HELD_OUT_POINTS)
            if not name.endswith("-main"):
                points = [*((0, bits) for _, bits in main.held_out(domain)[-1:]), *points]
            # Each name once: the colours on the left, the dashes on the right.
            named = label if points and name == "perch-main" else None
            _draw(panel, runs, name, points, color=colour, label=named, ls="--" if name == "minnow-plain" else "-")
    if "minnow" in runs:
        for look, label in (("--", "by itself"), ("-", "distilled")):
            panel.plot([], [], color="#555555", ls=look, lw=1.2, label=label)
    _finish(panel, runs)


def _draw(panel: "Axes", runs: Mapping[str, Run], name: str, points: Points, **look: Any) -> None:
    """Draw curves. Last phases begin where the main one ended."""
    before = 0 if name.endswith("-main") else _main_tokens(runs)
    panel.plot([(before + x) / 1e9 for x, _ in points], [y for _, y in points], lw=1.2, **look)


def _finish(panel: "Axes", runs: Mapping[str, Run]) -> None:
    """Draw a line where the last phase begins, a grid and a legend."""
    start = _main_tokens(runs) / 1e9
    panel.axvline(start, color="#888888", lw=0.8, ls=":")
    panel.text(start, 0.02, " last phase", transform=panel.get_xaxis_transform(), color="#555555")
    panel.locator_params(nbins=5)
    panel.grid(color="#dddddd", lw=0.5)
    if panel.get_legend_handles_labels()[1]:
        panel.legend(loc="upper right", facecolor="white", edgecolor="none", ncols=2)


def _main_tokens(runs: Mapping[str, Run]) -> int:
    return sum(run.num_tokens for name, run in runs.items() if name.endswith("-main"))


def _settled(run: Run, points: Points) -> list[float]:
    """Return the curve without its steep beginning, which would hide everything else."""
    return [y for x, y in points if x > run.num_tokens / 30]


def thinned(points: Points, most: int) -> list[tuple[float, float]]:
    """Return at most so many points, each the mean of those it replaces."""
    groups = [points[len(points) * n // most : len(points) * (n + 1) // most] for n in range(most)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups if group]
