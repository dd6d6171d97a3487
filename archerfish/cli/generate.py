"""`archerfish generate`: prompts in, answers out."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from archerfish.cli.answers import write_all, write_json, write_stream
from archerfish.cli.engine_options import engine_options, open_model
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.cli.prompts import gather_prompts
from archerfish.cli.response_format_options import response_format_options
from archerfish.cli.sampling_options import sampling_options, sampling_params
from archerfish.config.settings import EngineConfig
from archerfish.errors import ConfigError
from archerfish.request import Structured


@click.command("generate", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option(
    "--file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help='File with one prompt per line; in a .jsonl file each line is {"prompt": "text"}. Blank lines are skipped; '
    "- reads standard input.",
)
@click.option("--token-ids", multiple=True, metavar="ID,...", help="A prompt as token ids; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per prompt; times in seconds.")
@engine_options
@sampling_options()
@response_format_options
def command(
    texts: tuple[str, ...],
    file: Path | None,
    token_ids: tuple[str, ...],
    as_json: bool,
    sampling: Mapping[str, Any],
    response_format: Structured | None,
    config: EngineConfig,
) -> None:
    """Generate text from prompts in arguments, stdin or a file.

    Each TEXT is a prompt; - reads one from standard input, as does giving none. The output for a single prompt is
    streamed; several prompts run as a batch.
    """
    if not as_json and not {"logprobs", "prompt_logprobs"}.isdisjoint(sampling):
        raise ConfigError("--logprobs and --prompt-logprobs are shown only with --json: add it")
    prompts = gather_prompts(texts, file, token_ids)
    with open_model(config) as llm:
        params = replace(
            sampling_params(llm.assembly.recommended, sampling, llm.assembly.processor.max_model_len),
            structured=response_format,
        )
        has_text = llm.assembly.processor.tokenizer is not None
        if as_json:
            write_json(llm.generate(prompts, params))
        elif len(prompts) == 1 and params.n == 1 and params.best_of is None:
            write_stream(llm.stream(prompts[0], params), has_text=has_text)
        else:
            write_all(llm.generate(prompts, params), has_text=has_text)
