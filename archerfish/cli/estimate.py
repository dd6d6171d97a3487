"""`archerfish estimate`: whether a model fits in memory with its settings, before any of its weights is here."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from archerfish.cli.engine_options import engine_options
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.config.numbers import format_bytes, parse_count
from archerfish.config.settings import EngineConfig
from archerfish.errors import ConfigError, DoesNotFit

if TYPE_CHECKING:
    from archerfish.engine.estimate import Estimate


@click.command("estimate", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.argument("model", required=False)
@click.option(
    "--memory",
    metavar="INT",
    help="Free memory of the device to plan for, such as 24G; by default this machine's. With --device cuda, the GPU "
    "need not be present.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; memory in bytes.")
@engine_options
def command(model: str | None, memory: str | None, as_json: bool, config: EngineConfig) -> None:
    """Estimate whether a model fits in memory, before downloading it.

    MODEL is a directory, a bundled model, a hub name (only config.json is downloaded) or a config file; by default
    perch. Options are those of archerfish serve. Exits with 2 if the model does not fit.

    On a CPU, a start with as much free memory gets the same cache. On a GPU, a start measures its largest step instead.
    """
    if model is not None:
        if config.model is not None:
            raise ConfigError("the model was given twice: leave out MODEL or --model")
        config = replace(config, model=model)
    available = None if memory is None else _parsed(memory)
    from archerfish.engine.estimate import estimate

    result = estimate(config, available)
    if as_json:
        click.echo(json.dumps(asdict(result), indent=2))
    else:
        _print(result, can_be_gpu=config.device == "auto")
    if result.remedy is not None:
        raise DoesNotFit(f"the model does not fit in memory. {result.remedy}")


def _parsed(memory: str) -> int:
    try:
        available = parse_count(memory)
    except ConfigError as error:
        raise ConfigError(f"--memory: {error}") from error
    if available < 1:
        raise ConfigError(f"--memory {memory}: it must be at least 1")
    return available


def _print(estimate: "Estimate", *, can_be_gpu: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(_title(estimate)), title_justify="left", title_style="bold", show_header=False)
    table.box = box.SIMPLE_HEAD
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for name, size in _rows(estimate):
        if name:
            table.add_row(escape(name), format_bytes(size))
        else:
            table.add_section()
    console = Console(highlight=False)
    console.print(table)
    console.print(_planned_for(estimate, can_be_gpu=can_be_gpu))
    if estimate.fit is not None:
        requests = f"{estimate.fit.num_requests:,.1f} requests of {estimate.max_model_len:,} tokens"
        console.print(f"It fits: {estimate.fit.num_tokens:,} tokens in {estimate.fit.num_blocks:,} blocks, {requests}.")
    if estimate.device == "cuda":
        console.print("A start on a GPU measures the largest step, and sizes the cache by that.")


def _planned_for(estimate: "Estimate", *, can_be_gpu: bool) -> str:
    """Return a sentence with the device, and how much of its memory is used."""
    gpu = "a GPU" if estimate.device_is_here else "a GPU, though there is none here,"
    device = "the CPU" if estimate.device == "cpu" else gpu
    share = estimate.gpu_memory_utilization
    used = "" if share is None else f" with {share:.0%} of its free memory (--gpu-memory-utilization {share:g})"
    hint = " There is no GPU here; --device cuda plans for one." if estimate.device == "cpu" and can_be_gpu else ""
    return f"Planned for {device}{used}.{hint}"


def _title(estimate: "Estimate") -> str:
    weights = estimate.dtype if estimate.quantization == "none" else estimate.quantization
    return f"{estimate.model}: {estimate.num_parameters / 1e6:,.1f}M parameters, {weights} on {estimate.device}"


def _rows(estimate: "Estimate") -> Iterator[tuple[str, float]]:
    """Yield names with bytes; a row without a name ends a section."""
    yield "weights", estimate.weights
    if estimate.draft_method is not None:
        yield f"weights of the drafter ({estimate.draft_method})", estimate.draft_weights
    yield f"activations of a step of {estimate.max_num_batched_tokens:,} tokens", estimate.activations
    yield f"KV cache of one request of {estimate.max_model_len:,} tokens", estimate.kv_cache_per_request
    yield "needed", estimate.needed
    yield "", 0
    yield "available", estimate.available
    if estimate.usable is not None:
        yield f"usable at --gpu-memory-utilization {estimate.gpu_memory_utilization:g}", estimate.usable
    if estimate.kv_cache_memory_bytes is not None:
        yield "allowed for the KV cache (--kv-cache-memory-bytes)", estimate.kv_cache_memory_bytes
    yield "", 0
    yield f"KV cache of a token, {estimate.kv_cache_dtype}", estimate.kv_cache_per_token
    if estimate.fit is not None:
        yield "KV cache", estimate.fit.num_bytes
