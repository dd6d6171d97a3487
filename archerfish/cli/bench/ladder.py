"""`archerfish bench ladder`: what each optimization adds, over the same requests."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from archerfish.cli.bench.reporting import check_report, print_tables, report_option, table, write_record
from archerfish.cli.engine_options import engine_options
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.config.numbers import format_bytes
from archerfish.config.settings import EngineConfig
from archerfish.console import ProgressBar
from archerfish.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from archerfish.bench.ladder.ladder import LadderRow

_COUNT = click.IntRange(min=1)
_BAR_WIDTH = 16
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█")


@click.command("ladder", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option(
    "--num-prompts", type=_COUNT, default=12, show_default=True, help="Number of requests; all arrive at once."
)
@click.option(
    "--shared-len",
    type=_COUNT,
    default=512,
    show_default=True,
    help="Length of the prefix that all prompts share, in tokens.",
)
@click.option(
    "--own-len", type=_COUNT, default=32, show_default=True, help="Length of the rest of each prompt, in tokens."
)
@click.option("--output-len", type=_COUNT, default=32, show_default=True, help="Output length, in tokens.")
@report_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; times in seconds.")
@engine_options
def command(
    num_prompts: int,
    shared_len: int,
    own_len: int,
    output_len: int,
    report: Path | None,
    as_json: bool,
    config: EngineConfig,
) -> None:
    """Measure what each optimization adds to naive generation.

    Every line runs the same requests with greedy sampling and adds one optimization to those above it. Lossless lines
    must write the same tokens; so that rounding does not break ties, --dtype auto means float32 here. "naive"
    recomputes the whole sequence for each token, "KV cache" stores the keys and values of one request at a time, and
    the other lines are the engine. With random weights, speculation is measured only if --speculative-config is given.
    """
    _refuse_what_rungs_set(config)
    check_report(report)
    from archerfish.bench.ladder.ladder import Ladder, measure_ladder, verdict_lines
    from archerfish.bench.ladder.rungs import LadderSetup, rungs_for
    from archerfish.bench.offline.conditions import Conditions
    from archerfish.bench.offline.workloads import shared_prefix_workload
    from archerfish.engine.build import examine

    if config.dtype == "auto":
        config = replace(config, dtype="float32")
    blueprint = examine(config)
    workload = shared_prefix_workload(num_prompts, shared_len, own_len, output_len, blueprint.arch.vocab_size)
    workload.check_fits(blueprint.config.max_model_len, "--shared-len, --own-len or --output-len")
    conditions = Conditions.of(blueprint)
    rungs = rungs_for(config, blueprint.config.device)
    with ProgressBar("rungs", len(rungs)) as bar:
        rows = measure_ladder(LadderSetup(config, workload), rungs, bar.update)
    ladder = Ladder(num_requests=num_prompts, shared_len=shared_len, own_len=own_len, output_len=output_len, rows=rows)
    if as_json:
        write_record(conditions, ladder)
    else:
        print_tables(f"{conditions.title}: {ladder.load_text}", _table(rows))
        for line in verdict_lines(rows):
            click.echo(line)
    if report is not None:
        from archerfish.bench.report.ladder_page import ladder_page
        from archerfish.bench.report.page import save_page

        save_page(ladder_page(conditions, ladder), report)
        click.echo(f"the report is {report}", err=True)


def _refuse_what_rungs_set(config: EngineConfig) -> None:
    for wanted, flag in (
        (config.enable_prefix_caching, "--no-enable-prefix-caching"),
        (config.batching == "continuous", "--batching"),
        (config.speculative_config.get("verification") != "typical", "--speculative-config verification typical"),
    ):
        if not wanted:
            raise ConfigError(f"{flag}: the ladder sets it for each line; leave it out")


def _table(rows: "Sequence[LadderRow]") -> "Table":
    lines = table("line", "s/request", "latency s", "tokens/s", "memory", "x above", "x first", " ")
    lines.caption = "Memory: weights, KV cache in use, and workspace of the largest step (estimated). Latency: mean."
    lines.caption_justify = "left"
    most = max(row.tokens_per_second or 0.0 for row in rows)
    for row in rows:
        if row.tokens_per_second is None:
            lines.add_row(row.name, *["-"] * 6, "", style="dim")
            continue
        lines.add_row(
            row.name,
            f"{row.seconds_per_request:,.3f}",
            f"{row.mean_latency:,.2f}",
            f"{row.tokens_per_second:,.1f}",
            format_bytes(row.memory_bytes or 0),
            "" if row.ratio is None else f"{row.ratio:,.2f}",
            "" if row.total_ratio is None else f"{row.total_ratio:,.2f}",
            bar_picture(row.tokens_per_second / most),
        )
    return lines


def bar_picture(share: float) -> str:
    """Return a bar as long as the share, in eighths of a character; it is never empty."""
    whole, eighths = divmod(max(1, round(share * _BAR_WIDTH * 8)), 8)
    return _EIGHTHS[8] * whole + _EIGHTHS[eighths]
