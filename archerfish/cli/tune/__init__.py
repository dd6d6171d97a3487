"""`archerfish tune`: finds what is to be tuned. Knows none of it."""

import click

from archerfish.cli.lazy import CONTEXT_SETTINGS, Entry, LazyGroup

_COMMANDS = {
    "kernels": Entry("kernels", "Measure how a model's products are best cut on this GPU, and keep it."),
}


@click.group(
    "tune",
    cls=LazyGroup,
    package="archerfish.cli.tune",
    entries=_COMMANDS,
    invoke_without_command=True,
    epilog="Each has its own --help.",
    context_settings=CONTEXT_SETTINGS,
)
@click.pass_context
def command(context: click.Context) -> None:
    """Measure what is fastest here, and keep it for later starts."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
