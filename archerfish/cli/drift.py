"""`archerfish doctor --drift`: how far each lossy format takes a model from its float32 original."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import torch

from archerfish.box import DEFAULT_MODEL
from archerfish.compress.formats import FormatDrift, lossy_formats, measure_formats
from archerfish.console import ProgressBar
from archerfish.files import read_text

_BETWEEN = "<|endoftext|>"


def show_drift(model: str | None, text: Path | None, max_tokens: int, *, as_json: bool) -> None:
    # The model is loaded once per format: the log of each load would push the table out of sight.
    documents = None if text is None else split_documents(read_text(text) or "")
    formats = lossy_formats("cuda" if torch.cuda.is_available() else "cpu")
    names = list(formats)
    click.echo(f"measuring {model or DEFAULT_MODEL} in float32 and in {len(names)} lossy formats", err=True)
    with ProgressBar("measuring drift", len(names)) as bar:

        def report(name: str, share: float) -> None:
            bar.update(names.index(name) + share, name)

        drifts = list(measure_formats(model, documents, max_tokens, formats, report))
    if as_json:
        click.echo(json.dumps({"formats": [_record(entry) for entry in drifts]}, indent=2))
    else:
        _print(drifts)


def _record(entry: FormatDrift) -> dict[str, Any]:
    if entry.drift is None:
        return {"format": entry.format, "reason": entry.reason}
    return {"format": entry.format, **asdict(entry.drift)}


def split_documents(text: str) -> list[str]:
    """Return the parts of a text between lines of <|endoftext|>; the whole text where there are none."""
    documents: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == _BETWEEN:
            documents.append([])
        else:
            documents[-1].append(line)
    return [joined for document in documents if (joined := "\n".join(document).strip())]


def _print(entries: list[FormatDrift]) -> None:
    from rich.console import Console
    from rich.table import Table

    first = next((entry.drift for entry in entries if entry.drift is not None), None)
    title = "no format could be measured"
    if first is not None:
        title = f"{first.num_tokens:,} tokens; perplexity in float32 {first.original_perplexity:.3f}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column("format", no_wrap=True)
    # On lines of their own, so that all fit 80 columns.
    for heading in ("\nperplexity", "against\nfloat32", "KL\ndivergence", "top-1\nagreement"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in entries:
        drift = entry.drift
        if drift is None:
            continue
        figures = (f"{drift.perplexity:.3f}", f"{drift.loss:+.2%}", f"{drift.divergence:.5f}", f"{drift.agreement:.1%}")
        table.add_row(entry.format, *figures)
    console = Console()
    console.print(table)
    for entry in entries:
        if entry.reason is not None:
            console.print(f"{entry.format}: not measured, {entry.reason}", markup=False, highlight=False)
