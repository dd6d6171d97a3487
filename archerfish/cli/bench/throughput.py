"""`archerfish bench throughput`: many requests at once through the engine alone."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from archerfish.cli.bench.reporting import latency_table, phase_table, print_tables, speculation_tables, write_record
from archerfish.cli.engine_options import engine_options, open_model
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.cli.prompts import gather_prompts
from archerfish.config.settings import EngineConfig
from archerfish.console import ProgressBar
from archerfish.errors import ConfigError

if TYPE_CHECKING:
    from archerfish.bench.offline.conditions import Conditions
    from archerfish.bench.offline.measure import ThroughputResult
    from archerfish.bench.offline.workloads import OfflineWorkload
    from archerfish.engine.build import Assembly

_COUNT = click.IntRange(min=1)
_NUM_PROMPTS, _INPUT_LEN, _OUTPUT_LEN = 64, 256, 64


@click.command("throughput", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option(
    "--dataset-name",
    type=click.Choice(["random", "prompts"]),
    help="random: prompts of random tokens without shared prefixes; prompts: those of --dataset-path. "
    "[default: random]",
)
@click.option(
    "--dataset-path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='With prompts: a file with one prompt per line; in a .jsonl file each line is {"prompt": "text"}.',
)
@click.option("--num-prompts", type=_COUNT, help=f"Number of requests. [default: {_NUM_PROMPTS}, or all of a file]")
@click.option("--input-len", type=_COUNT, help=f"Length of random prompts, in tokens. [default: {_INPUT_LEN}]")
@click.option("--output-len", type=_COUNT, help=f"Output length, in tokens. [default: {_OUTPUT_LEN}]")
@click.option(
    "--workload",
    type=click.Choice(["nano-vllm"]),
    help="A published workload instead: nano-vllm is 256 requests of 100 to 1024 tokens in and out, 142,827 and "
    "133,966 in all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; times in seconds.")
@engine_options
def command(
    dataset_name: str | None,
    dataset_path: Path | None,
    num_prompts: int | None,
    input_len: int | None,
    output_len: int | None,
    workload: str | None,
    as_json: bool,
    config: EngineConfig,
) -> None:
    """Measure the throughput of the engine alone.

    All requests arrive at once. Outputs are of full length, and greedy unless --workload says otherwise.
    """
    _check_options(
        workload,
        dataset_name,
        {
            "--dataset-name": dataset_name,
            "--dataset-path": dataset_path,
            "--num-prompts": num_prompts,
            "--input-len": input_len,
            "--output-len": output_len,
        },
    )
    prompts = [] if dataset_path is None else gather_prompts((), dataset_path, ())
    with open_model(config) as llm:
        from archerfish.bench.offline.conditions import Conditions
        from archerfish.bench.offline.measure import OfflineBench, measure_throughput
        from archerfish.bench.offline.workloads import nano_vllm_workload, random_workload

        assembly = llm.assembly
        vocab_size, length = assembly.arch.vocab_size, output_len or _OUTPUT_LEN
        if workload is not None:
            chosen = nano_vllm_workload(vocab_size)
        elif prompts:
            chosen = _of_prompts(assembly, prompts, num_prompts, length)
        else:
            chosen = random_workload(num_prompts or _NUM_PROMPTS, input_len or _INPUT_LEN, length, vocab_size, 0)
        chosen.check_fits(assembly.config.max_model_len)
        bench, conditions = OfflineBench.of(assembly), Conditions.of(assembly.blueprint)
        bench.run(random_workload(1, 8, 4, vocab_size, 1))  # Loads libraries, and wakes threads and clocks.
        with ProgressBar("tokens", chosen.num_output_tokens) as bar:
            result = measure_throughput(bench, chosen, conditions.peak, bar.update)
    if as_json:
        write_record(conditions, result)
    else:
        _print(conditions, result)


def _check_options(workload: str | None, dataset_name: str | None, given: dict[str, object]) -> None:
    """Refuse options that would be ignored."""
    useless: list[str] = []
    if workload is not None:
        useless, why = list(given), f"--workload {workload} defines all requests; leave one of them out"
    elif dataset_name == "prompts":
        useless, why = ["--input-len"], "prompts from a file have their own lengths; leave it out"
    else:
        useless, why = ["--dataset-path"], "random prompts need no file; add --dataset-name prompts to read this one"
    for flag in useless:
        if given[flag] is not None:
            raise ConfigError(f"{flag}: {why}")
    if dataset_name == "prompts" and given["--dataset-path"] is None:
        raise ConfigError("--dataset-name prompts needs --dataset-path, a file with one prompt per line")


def _of_prompts(
    assembly: "Assembly", prompts: "list[str | list[int]]", num_prompts: int | None, output_len: int
) -> "OfflineWorkload":
    from archerfish.bench.offline.workloads import prompts_workload

    token_ids = [assembly.processor.token_ids(prompt) for prompt in prompts]
    return prompts_workload(token_ids, num_prompts or len(token_ids), output_len)


def _print(conditions: "Conditions", result: "ThroughputResult") -> None:
    cached = f" ({result.num_cached_tokens:,} of them from the cache)" if result.num_cached_tokens else ""
    print_tables(
        f"{conditions.engine_title}: {result.workload}, {result.num_requests} requests, "
        f"{result.num_input_tokens:,} tokens in{cached}, {result.num_output_tokens:,} out, in {result.seconds:,.2f} s",
        latency_table([("time to first token", result.ttft), ("time per output token", result.tpot)]),
        phase_table(result.prefill, result.decode, conditions.peak),
        *speculation_tables(result.speculation),
    )
    # The last line of vLLM's command, for scripts that read it.
    click.echo(
        f"Throughput: {result.requests_per_second:.2f} requests/s, "
        f"{result.total_tokens_per_second:.2f} total tokens/s, {result.output_tokens_per_second:.2f} output tokens/s"
    )
