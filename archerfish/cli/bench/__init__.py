"""`archerfish bench`: finds the benchmark that was asked for. Knows none of them."""

import click

from archerfish.cli.lazy import CONTEXT_SETTINGS, Entry, LazyGroup

_COMMANDS = {
    "serve": Entry("serve", "Measure a server under load: latency, throughput, goodput."),
    "sweep": Entry("sweep", "Measure a server at many loads, and find the most that it serves in time."),
    "report": Entry("report", "Make a page of charts from a saved run of bench serve."),
    "compare": Entry("compare", "Say what differs between saved runs, and how surely."),
    "latency": Entry("latency", "Measure how long one batch takes in the engine alone."),
    "throughput": Entry("throughput", "Measure how many tokens a second the engine alone computes."),
    "ladder": Entry("ladder", "Measure what each optimization adds, from naive recomputation on."),
    "kernels": Entry("kernels", "Measure every kernel against what the machine can do at most."),
}


@click.group(
    "bench",
    cls=LazyGroup,
    package="archerfish.cli.bench",
    entries=_COMMANDS,
    invoke_without_command=True,
    epilog="Each benchmark has its own --help.",
    context_settings=CONTEXT_SETTINGS,
)
@click.pass_context
def command(context: click.Context) -> None:
    """Measure speed: of the engine, its kernels, or any server."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
