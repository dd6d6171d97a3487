"""`archerfish bench serve`: load over HTTP, against our own server or any other of OpenAI's API."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import msgspec

from archerfish.bench.serve.datasets.options import DatasetOptions
from archerfish.bench.serve.options import LoadOptions
from archerfish.bench.serve.records import BenchRun, RequestRecord, save_run
from archerfish.bench.serve.summary import Summary, summarize
from archerfish.bench.serve.table import layout, parse_metrics, parse_percents
from archerfish.cli.bench.load_options import (
    GoodputCommand,
    dollars_option,
    goodput_option,
    load_options,
    url_option,
)
from archerfish.cli.bench.reporting import check_report, report_option
from archerfish.cli.field_options import NUMBERS_NOTE
from archerfish.console import ProgressBar
from archerfish.errors import ConfigError, InvalidMeasurement
from archerfish.metrics.timing import parse_objectives


@click.command("serve", cls=GoodputCommand, epilog=NUMBERS_NOTE)
@url_option
@goodput_option
@click.option(
    "--percentile-metrics",
    default="ttft,tpot,itl,e2el",
    show_default=True,
    metavar="NAME,...",
    help="Latencies to show: any of ttft, tpot, itl, e2el.",
)
@click.option(
    "--metric-percentiles",
    default="90,95,99",
    show_default=True,
    metavar="P,...",
    help="Percentiles of these latencies to show.",
)
@dollars_option
@click.option("--save-result", is_flag=True, help="Save the run, with the times of every request, as a JSON file.")
@click.option(
    "--result-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the saved run; by default the current one.",
)
@click.option("--result-filename", metavar="NAME", help="Name of the saved run; by default with date and time.")
@report_option
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object; times in seconds.")
@click.option("--disable-tqdm", is_flag=True, help="Show no progress bar.")
@load_options
def command(url: str | None, load: LoadOptions, dataset: DatasetOptions, disable_tqdm: bool, **output: Any) -> None:
    """Measure a server under load: latency, throughput, goodput.

    Requests are sent as planned, whatever the server does, and outputs are streamed; each token is timed where
    its bytes arrive. A run that cannot be trusted is marked INVALID, and the command then ends with code 2. What the
    figures mean is in docs/metrics.md.
    """
    report = _Report(**output)
    from archerfish.bench.serve.measure import measure_serving

    with ProgressBar("requests", load.num_prompts, enabled=not disable_tqdm) as bar:
        num_ended = 0

        def on_end(_: RequestRecord) -> None:
            nonlocal num_ended
            num_ended += 1
            bar.update(num_ended)

        run = measure_serving(load, dataset, url, on_end)
    report.write(run)


class _Report:
    """Output of a run: what is printed and saved. Mistakes in these options are reported before it starts."""

    def __init__(
        self,
        *,
        goodput: tuple[str, ...],
        percentile_metrics: str,
        metric_percentiles: str,
        dollars_per_hour: float | None,
        save_result: bool,
        report: Path | None,
        as_json: bool,
        **where: Any,
    ) -> None:
        self._objectives = parse_objectives(goodput)
        self._metrics = parse_metrics(percentile_metrics)
        self._percents = parse_percents(metric_percentiles)
        self._dollars_per_hour = dollars_per_hour
        check_report(report)
        self._page = report
        self._as_json = as_json
        self._directory, self._filename = _where(save_result, **where)

    def write(self, run: BenchRun) -> None:
        summary = summarize(
            run, percents=self._percents, objectives=self._objectives, dollars_per_hour=self._dollars_per_hour
        )
        click.echo(_json(run, summary) if self._as_json else layout(run, summary, self._metrics))
        if self._directory is not None:
            name = self._filename or f"bench-serve-{run.started_at[:19].replace(':', '')}.json"
            save_run(run, self._directory / name)
            click.echo(f"saved in {self._directory / name}", err=True)
        if self._page is not None:
            from archerfish.bench.report.run_page import save_report

            save_report(run, self._page, objectives=self._objectives, dollars_per_hour=self._dollars_per_hour)
            click.echo(f"the report is {self._page}", err=True)
        fatal = [finding for finding in run.findings if finding.is_fatal]
        if fatal:
            names = ", ".join(finding.name for finding in fatal)
            raise InvalidMeasurement(f"the run is INVALID ({names}): {fatal[0].what}; {fatal[0].fix}")


def _where(save: bool, *, result_dir: Path | None, result_filename: str | None) -> tuple[Path | None, str | None]:
    if not save:
        if result_dir is not None or result_filename is not None:
            raise ConfigError("--result-dir and --result-filename need --save-result")
        return None, None
    directory = result_dir or Path()
    if not directory.is_dir():
        raise ConfigError(f"--result-dir: there is no directory {directory}")
    return directory, result_filename


def _json(run: BenchRun, summary: Summary) -> str:
    """Return the run as JSON without single requests and samples, which only --save-result writes."""
    about = {field.name: getattr(run, field.name) for field in fields(run) if field.name not in ("requests", "samples")}
    return msgspec.json.encode({**about, "is_valid": run.is_valid, "summary": summary}).decode()
