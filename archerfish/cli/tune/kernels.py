"""`archerfish tune kernels`: measures the fastest tiles of a model's GEMMs on this GPU, and stores them."""

import os
from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from archerfish.cli.bench.reporting import print_tables, table
from archerfish.cli.field_options import SectionedCommand, field_options, take_given
from archerfish.config.load import load_config
from archerfish.config.settings import EngineConfig
from archerfish.console import ProgressBar
from archerfish.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from archerfish.ops.triton.runtime import TunedGemm

_SETTINGS = ("model", "revision", "dtype", "hf_overrides")
"""Settings that decide shapes; no other setting of the engine matters here."""
_OTHER_SETTINGS = tuple(field.name for field in fields(EngineConfig) if field.name not in _SETTINGS)


@click.command("kernels", cls=SectionedCommand)
@field_options(EngineConfig, section="Model", prefix="config_", left_out=_OTHER_SETTINGS)
def command(**settings: Any) -> None:
    """Measure the fastest tiles of a model's GEMMs on this GPU, and store them for later starts.

    Takes minutes, most of them for compiling. Weights are not loaded. Tiles change how long a step takes, and not a bit
    of any answer.
    """
    given = take_given(settings, "config_")
    config = load_config(EngineConfig, {**given, "load_format": "dummy"}, None, os.environ)
    from archerfish.engine.build import examine
    from archerfish.ops import KernelTarget, torch_dtype, why_not_triton

    blueprint = examine(config)
    resolved = blueprint.config
    reason = why_not_triton(KernelTarget(device=resolved.device, dtype=resolved.dtype))
    if reason is not None or resolved.device != "cuda":
        raise ConfigError(f"tuning needs a GPU and Triton: {reason or 'no GPU was found'}")
    from archerfish.bench.kernels.tuning import GpuStopwatch, gemm_shapes_of, tune_gemms

    shapes = gemm_shapes_of(blueprint.arch)
    with ProgressBar("GEMMs", len(shapes)) as bar:
        stopwatch = GpuStopwatch(torch_dtype(resolved.dtype), resolved.threads)
        tuned = list(tune_gemms(shapes, stopwatch, bar.update))
    print_tables(f"{blueprint.directory.name}: GEMMs of 16-bit rows", _table(tuned))


def _table(results: "Iterable[TunedGemm]") -> "Table":
    rows = table("GEMM", "us before", "us", "faster")
    for tuned in results:
        gain = tuned.seconds_before / tuned.seconds - 1
        rows.add_row(
            tuned.shape.name, f"{tuned.seconds_before * 1e6:,.1f}", f"{tuned.seconds * 1e6:,.1f}", f"{gain:.0%}"
        )
    return rows
