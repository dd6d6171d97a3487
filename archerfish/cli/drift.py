"""What `archerfish doctor --drift` prints: how far each format of the weights takes a model from its original."""

import json
from dataclasses import asdict
from pathlib import Path

import click

from archerfish.box import DEFAULT_MODEL
from archerfish.compress.formats import FORMATS, FormatDrift, measure_formats
from archerfish.console import ProgressBar
from archerfish.files import read_text

_BETWEEN = "<|endoftext|>"


def show_drift(model: str | None, text: Path | None, max_tokens: int, *, as_json: bool) -> None:
    # Each format is a load of its own: what is logged of them all would push the table out of sight.
    documents = None if text is None else split_documents(read_text(text) or "")
    names = list(FORMATS)
    click.echo(f"measuring {model or DEFAULT_MODEL} in float32 and {len(names)} formats of its weights", err=True)
    with ProgressBar("measuring drift", len(names)) as bar:
        found = list(
            measure_formats(
                model, documents, max_tokens, lambda name, share: bar.update(names.index(name) + share, name)
            )
        )
    if as_json:
        click.echo(json.dumps({"formats": [{"format": one.format, **asdict(one.drift)} for one in found]}, indent=2))
    else:
        _print(found)


def split_documents(text: str) -> list[str]:
    """What lies between lines that part documents; all of it where there are none."""
    documents: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == _BETWEEN:
            documents.append([])
        else:
            documents[-1].append(line)
    return [joined for document in documents if (joined := "\n".join(document).strip())]


def _print(found: list[FormatDrift]) -> None:
    from rich.console import Console
    from rich.table import Table

    first = found[0].drift
    title = f"{first.num_tokens:,} tokens; perplexity in float32 {first.original_perplexity:.3f}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1))
    table.add_column("format", no_wrap=True)
    # In lines of their own, so that all fit 80 columns.
    for heading in ("\nperplexity", "against\nfloat32", "KL\ndivergence", "top-1\nagreement"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found:
        drift = one.drift
        figures = (f"{drift.perplexity:.3f}", f"{drift.loss:+.2%}", f"{drift.divergence:.5f}", f"{drift.agreement:.1%}")
        table.add_row(one.format, *figures)
    Console().print(table)
