"""`archerfish doctor`: what this machine offers, and which kernels a model would run on."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from rich.table import Table

    from archerfish.cli.diagnosis import CpuReport, Diagnosis, KernelSelection, MemoryReport, ModelReport

_MAX_TOKENS = 65_536


@click.command("doctor")
@click.argument("model", required=False)
@click.option(
    "--drift", is_flag=True, help="Measure the drift of each lossy format of weights and KV cache from float32."
)
@click.option(
    "--text",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="With --drift: text to measure on, documents separated by <|endoftext|> lines; by default one it writes.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=2),
    default=_MAX_TOKENS,
    show_default=True,
    help="With --text: maximum number of tokens to read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; memory in bytes and bytes per second.")
@click.pass_context
def command(
    context: click.Context, model: str | None, drift: bool, text: Path | None, max_tokens: int, as_json: bool
) -> None:
    """Show what this machine can do and which kernels it will run.

    Measures the memory bandwidth, which bounds the speed of decoding. With MODEL, a directory or a name, also shows the
    model's sizes and the kernels for its shapes; only config.json is read. With --drift, measures how far each lossy
    format of weights and KV cache takes MODEL (by default perch) from its float32 original: KL divergence, perplexity
    and top-1 agreement.
    """
    # A text that the model writes has a fixed length.
    if text is None and context.get_parameter_source("max_tokens") is not ParameterSource.DEFAULT:
        raise click.UsageError("--max-tokens needs --text; use archerfish doctor --drift --text FILE")
    if drift:
        from archerfish.cli.drift import show_drift

        show_drift(model, text, max_tokens, as_json=as_json)
        return
    if text is not None:
        raise click.UsageError("--text needs --drift; use archerfish doctor --drift --text FILE")
    from archerfish.cli.diagnosis import diagnose

    diagnosis = diagnose(model)
    if as_json:
        click.echo(json.dumps(asdict(diagnosis), indent=2))
    else:
        _print(diagnosis)


def _print(diagnosis: "Diagnosis") -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    versions = ((name, number or "not installed") for name, number in diagnosis.versions.items())
    console.print(_pairs("Versions", versions))
    console.print(_pairs("CPU", _cpu_rows(diagnosis.cpu)))
    console.print(_pairs("Memory", _memory_rows(diagnosis.memory)))
    for gpu in diagnosis.gpus:
        rows = [("compute capability", gpu.compute_capability), ("multiprocessors", str(gpu.num_multiprocessors))]
        console.print(_pairs(f"GPU: {gpu.name}", [*rows, *_memory_rows(gpu.memory)]))
    if not diagnosis.gpus:
        console.print("GPU: none that torch can use\n", style="dim")
    if diagnosis.model is not None:
        console.print(_pairs(f"Model: {escape(diagnosis.model.name)}", _model_rows(diagnosis.model)))
    console.print(_kernel_table(diagnosis))
    for problem in diagnosis.problems:
        console.print(problem, style="red", markup=False)


def _pairs(title: str, rows: Iterable[tuple[str, str]]) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, padding=(0, 2))
    for name, value in rows:
        table.add_row(name, escape(value))
    # Without a blank line, a table without borders runs into the next one.
    table.add_row("", "")
    return table


def _cpu_rows(cpu: "CpuReport") -> list[tuple[str, str]]:
    present = [name for name, there in cpu.features.items() if there]
    absent = [name for name, there in cpu.features.items() if not there]
    amx = "none"
    if cpu.has_hidden_amx:
        amx = "yes: oneDNN cannot configure its tiles and must not use it"
    return [
        ("name", cpu.name),
        ("cores", str(cpu.num_cores)),
        ("features", " ".join(present) or "none of those that matter"),
        ("lacks", " ".join(absent) or "none of those that matter"),
        ("hidden AMX", amx),
        ("ONEDNN_MAX_CPU_ISA", cpu.onednn_max_cpu_isa or "not set"),
    ]


def _memory_rows(memory: "MemoryReport") -> list[tuple[str, str]]:
    from archerfish.config.numbers import format_bytes

    return [
        ("total", format_bytes(memory.total)),
        ("available", format_bytes(memory.available)),
        ("read bandwidth", f"{memory.read_bandwidth / 1e9:,.1f} GB/s measured"),
    ]


def _model_rows(model: "ModelReport") -> list[tuple[str, str]]:
    from archerfish.config.numbers import format_bytes

    return [
        ("family", model.family),
        ("weights", f"{model.num_parameters / 1e6:,.1f}M, {format_bytes(model.weight_bytes)} in {model.dtype}"),
        ("context", f"{model.max_model_len:,} tokens"),
        (
            "KV cache",
            f"{format_bytes(model.kv_bytes_per_token)} a token, {format_bytes(model.kv_bytes_per_request)} for a full "
            "context",
        ),
        (
            "decoding",
            f"{model.tokens_per_second_from_memory:,.0f} tokens/s for one request, if weights are read from memory",
        ),
    ]


def _kernel_table(diagnosis: "Diagnosis") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    dtypes = list(dict.fromkeys(report.dtype for report in diagnosis.kernels))
    by_operation: dict[str, dict[str, KernelSelection]] = {}
    for report in diagnosis.kernels:
        by_operation.setdefault(report.operation, {})[report.dtype] = report
    title = f"Kernels on {diagnosis.device}" + ("" if diagnosis.model is None else " for this model")
    table = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2))
    for heading in ("operation", *dtypes, "why not another"):
        table.add_column(heading, header_style="dim")
    for operation, reports in by_operation.items():
        chosen = [reports[dtype].kernel if dtype in reports else "-" for dtype in dtypes]
        table.add_row(operation, *chosen, escape(_why_not(list(reports.values()))))
    return table


def _why_not(reports: "list[KernelSelection]") -> str:
    """Return each reason once, with the number formats it holds for if it does not hold for all."""
    holds_for: dict[str, list[str]] = {}
    for report in reports:
        for rejection in report.rejected:
            holds_for.setdefault(f"{rejection.kernel}: {rejection.reason}", []).append(report.dtype)
    return "\n".join(
        reason if len(dtypes) == len(reports) else f"{reason} ({', '.join(dtypes)})"
        for reason, dtypes in holds_for.items()
    )
