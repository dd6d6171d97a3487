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

    from archerfish.bench.ladder.ladder import Row

_COUNT = click.IntRange(min=1)
_BAR_WIDTH = 16
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉", "█")


@click.command("ladder", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option("--num-prompts", type=_COUNT, default=12, show_default=True, help="Requests, all arriving at once.")
@click.option("--shared-len", type=_COUNT, default=512, show_default=True, help="Tokens that all prompts begin with.")
@click.option("--own-len", type=_COUNT, default=32, show_default=True, help="Tokens of its own that each prompt has.")
@click.option("--output-len", type=_COUNT, default=32, show_default=True, help="Tokens to write for each.")
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
    """Measure what each optimization adds, from naive recomputation on.

    Every line runs the same requests, and all have to write the same tokens, the likeliest ones. So that rounding does
    not decide between two of them, --dtype auto is float32 here. "naive" computes everything again for each token;
    "KV cache" keeps keys and values of one request at a time in one stretch of memory; the other lines are the engine.
    """
    _refuse_what_rungs_set(config)
    check_report(report)
    from archerfish.bench.ladder.ladder import Ladder, climb_ladder, verdict_lines
    from archerfish.bench.ladder.rungs import RUNGS, Ascent
    from archerfish.bench.offline.conditions import Conditions
    from archerfish.bench.offline.workloads import shared_prefix_workload
    from archerfish.engine.build import examine

    if config.dtype == "auto":
        config = replace(config, dtype="float32")
    blueprint = examine(config)
    workload = shared_prefix_workload(num_prompts, shared_len, own_len, output_len, blueprint.arch.vocab_size)
    workload.check_fits(blueprint.config.max_model_len, "--shared-len, --own-len or --output-len")
    conditions = Conditions.of(blueprint)
    with ProgressBar("rungs", len(RUNGS)) as bar:
        rows = climb_ladder(Ascent(config, workload), bar.update)
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
            raise ConfigError(f"{flag}: the ladder's lines set it themselves; leave it out")


def _table(rows: "Sequence[Row]") -> "Table":
    made = table("line", "s/request", "mean wait s", "tokens/s", "KV memory", "x above", "x first", " ")
    most = max(row.tokens_per_second or 0.0 for row in rows)
    for row in rows:
        if row.tokens_per_second is None:
            made.add_row(row.name, *["-"] * 6, "", style="dim")
            continue
        made.add_row(
            row.name,
            f"{row.seconds_per_request:,.3f}",
            f"{row.mean_latency:,.2f}",
            f"{row.tokens_per_second:,.1f}",
            "none" if not row.kv_bytes else format_bytes(row.kv_bytes),
            "" if row.ratio is None else f"{row.ratio:,.2f}",
            "" if row.total_ratio is None else f"{row.total_ratio:,.2f}",
            bar_picture(row.tokens_per_second / most),
        )
    return made


def bar_picture(share: float) -> str:
    """As long as the share, in eighths of a character; something is always seen."""
    whole, eighths = divmod(max(1, round(share * _BAR_WIDTH * 8)), 8)
    return _EIGHTHS[8] * whole + _EIGHTHS[eighths]
