"""`archerfish bench latency`: one batch at a time through the engine alone."""

import click

from archerfish.cli.bench.reporting import latency_table, phase_table, print_tables, speculation_tables, write_record
from archerfish.cli.engine_options import engine_options, open_model
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.config.settings import EngineConfig
from archerfish.console import ProgressBar

_COUNT = click.IntRange(min=1)


@click.command("latency", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option("--input-len", type=_COUNT, default=32, show_default=True, help="Prompt length, in tokens.")
@click.option("--output-len", type=_COUNT, default=128, show_default=True, help="Output length, in tokens.")
@click.option("--batch-size", type=_COUNT, default=8, show_default=True, help="Number of requests per batch.")
@click.option(
    "--num-iters-warmup",
    type=click.IntRange(min=0),
    default=2,
    show_default=True,
    help="Batches to run before measuring.",
)
@click.option("--num-iters", type=_COUNT, default=10, show_default=True, help="Batches to measure.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; times in seconds.")
@engine_options
def command(
    input_len: int,
    output_len: int,
    batch_size: int,
    num_iters_warmup: int,
    num_iters: int,
    as_json: bool,
    config: EngineConfig,
) -> None:
    """Measure the latency of a batch in the engine alone.

    Prompts are random tokens, different in each batch, so that none is in the prefix cache. Outputs are greedy and of
    full length. Each batch starts when the one before it is complete.
    """
    with open_model(config) as llm:
        from archerfish.bench.offline.conditions import Conditions
        from archerfish.bench.offline.measure import OfflineBench, measure_latency
        from archerfish.bench.offline.workloads import random_workload

        assembly = llm.assembly
        workloads = [
            random_workload(batch_size, input_len, output_len, assembly.arch.vocab_size, seed)
            for seed in range(num_iters_warmup + num_iters)
        ]
        workloads[0].check_fits(assembly.config.max_model_len)
        conditions = Conditions.of(assembly.blueprint)
        with ProgressBar("batches", len(workloads)) as bar:
            result = measure_latency(
                OfflineBench.of(assembly), workloads, num_iters_warmup, conditions.peak, bar.update
            )
    if as_json:
        write_record(conditions, result)
        return
    times = [
        ("batch", result.batch),
        ("time to first token", result.ttft),
        ("time per output token", result.tpot),
        ("between tokens", result.itl),
    ]
    print_tables(
        f"{conditions.engine_title}: {result.num_iterations} batches of {batch_size} requests, {input_len} tokens in, "
        f"{output_len} out",
        latency_table(times),
        phase_table(result.prefill, result.decode, conditions.peak),
        *speculation_tables(result.speculation),
    )
