"""`archerfish bench kernels`: every implementation of every operation, at a model's shapes."""

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from archerfish.cli.bench.reporting import peak_text, percentage, print_tables, table, write_record
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand, field_options, take_given
from archerfish.config.load import load_config
from archerfish.config.settings import EngineConfig
from archerfish.console import ProgressBar
from archerfish.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from archerfish.bench.kernels.measure import KernelBenchReport
    from archerfish.bench.offline.conditions import Conditions

_COUNT = click.IntRange(min=1)
_SETTINGS = ("model", "revision", "dtype", "hf_overrides", "device", "threads", "block_size", "kv_cache_dtype")
"""Settings that decide shapes and kernels; no other setting of the engine matters here."""
_OTHER_SETTINGS = tuple(field.name for field in fields(EngineConfig) if field.name not in _SETTINGS)


@click.command("kernels", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=_COUNT,
    multiple=True,
    default=(1, 8, 64),
    show_default=True,
    help="Tokens per step; may be given several times.",
)
@click.option(
    "--context", type=_COUNT, default=512, show_default=True, help="Context length of each sequence, in tokens."
)
@click.option(
    "--operation",
    "operations",
    multiple=True,
    metavar="NAME",
    help="Measure only this operation; may be given several times.",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    metavar="NAME",
    help="Measure only matrices in this format of the table (none: the model's own); may be given several times.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=0.2,
    show_default=True,
    help="Seconds to run each kernel at each shape.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; times in seconds.")
@field_options(EngineConfig, section="Model", prefix="config_", left_out=_OTHER_SETTINGS)
def command(
    batch_sizes: tuple[int, ...],
    context: int,
    operations: tuple[str, ...],
    formats: tuple[str, ...],
    seconds: float,
    as_json: bool,
    **settings: Any,
) -> None:
    """Measure every kernel against the peak of the machine.

    Shapes are the model's; its weights are not loaded. As in a model, each call reads the weights of another layer than
    the one before, so that they are not in a cache.
    """
    given = take_given(settings, "config_")
    config = load_config(EngineConfig, {**given, "load_format": "dummy"}, None, os.environ)
    from archerfish.bench.kernels.cases import CaseParams, kernel_cases
    from archerfish.bench.kernels.measure import KernelTimer, measure_kernels
    from archerfish.bench.kernels.roofs import measure_roofs
    from archerfish.bench.offline.conditions import Conditions
    from archerfish.engine.build import examine
    from archerfish.ops import KernelTarget, all_implementations, torch_dtype
    from archerfish.quant import KvFormat

    blueprint = examine(config)
    resolved, arch = blueprint.config, blueprint.arch
    _check_names(operations, formats)
    conditions = Conditions.of(blueprint)
    target = KernelTarget.of_model(
        arch,
        device=resolved.device,
        dtype=resolved.dtype,
        block_size=resolved.block_size,
        threads=resolved.threads,
    )
    implementations = all_implementations(target)
    roofs = measure_roofs(conditions.peak, implementations, target)
    params = CaseParams(
        arch=arch,
        batch_sizes=batch_sizes,
        context=context,
        block_size=resolved.block_size,
        device=resolved.device,
        dtype=torch_dtype(resolved.dtype),
        kv_format=KvFormat(resolved.kv_cache_dtype, resolved.dtype),
        quantized=roofs.integer_flops is not None,
    )
    cases = [
        case
        for case in kernel_cases(params)
        if (not operations or case.operation in operations) and (not formats or (case.format or "none") in formats)
    ]
    with ProgressBar("kernels", len(cases)) as bar:
        report = measure_kernels(
            cases, implementations, target, roofs, KernelTimer(resolved.device, seconds), len(arch.layers), bar.update
        )
    if as_json:
        write_record(conditions, report)
    else:
        _print(conditions, report)


def _check_names(operations: tuple[str, ...], formats: tuple[str, ...]) -> None:
    from archerfish.bench.kernels.matrices import FORMATS, format_name
    from archerfish.ops import Ops

    known_operations = [field.name for field in fields(Ops)]
    known_formats = ["none", *(format_name(weights) for weights in FORMATS)]
    for what, given, known in (("operation", operations, known_operations), ("format", formats, known_formats)):
        for name in given:
            if name not in known:
                raise ConfigError(f"--{what} {name}: there is no such {what}; choose from {', '.join(known)}")


def _print(conditions: "Conditions", report: "KernelBenchReport") -> None:
    print_tables(f"{conditions.title}: kernels", _table(report, conditions.settings.dtype))
    click.echo(peak_text(conditions.peak))
    if report.integer_flops is not None:
        click.echo(f"Measured peak for quantized matrices: {report.integer_flops / 1e9:,.1f} GOP/s.")
    for refusal in report.refusals:
        click.echo(f"{refusal.operation}: {refusal.kernel} does not run here: {refusal.reason}")
    if report.unused:
        click.echo(f"Not measured, because nothing here uses them: {', '.join(report.unused)}.")


def _table(report: "KernelBenchReport", dtype: str) -> "Table":
    rows = table("operation", "shape", "format", "kernel", "us", "GOP/s", "GB/s", "of roof", "roof", "x best")
    for timing in report.timings:
        rows.add_row(
            timing.operation,
            timing.shape,
            timing.format or dtype,
            timing.kernel,
            f"{timing.seconds * 1e6:,.1f}",
            "-" if timing.flops_per_second is None else f"{timing.flops_per_second / 1e9:,.1f}",
            f"{timing.bytes_per_second / 1e9:,.1f}",
            percentage(timing.roof_share),
            timing.limit,
            f"{timing.ratio:.2f}",
        )
    return rows
