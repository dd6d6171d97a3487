"""`archerfish batch`: a file of requests in OpenAI's batch format in, a file of answers out."""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from archerfish.api.model import AnswerFormats, EmbeddingSizes, ServedModel
from archerfish.box import DEFAULT_MODEL
from archerfish.cli.engine_options import batch_options, open_model
from archerfish.cli.field_options import NUMBERS_NOTE, SectionedCommand
from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.console import ProgressBar, enable_logging, logger
from archerfish.errors import ConfigError, RequestError, StorageFull
from archerfish.jobs.input_lines import InputDamaged, InputLine, read_lines
from archerfish.jobs.offline import OfflineAnswers
from archerfish.jobs.partial_output import PartialOutput
from archerfish.jobs.records import answered
from archerfish.jobs.validate import InputLimits, validate

if TYPE_CHECKING:
    from archerfish.engine.llm import LLM

# The service's limit on lines does not apply to the user's own file; more errors than these would not be read.
_LIMITS = InputLimits(max_lines=2**31, max_errors=5)


@click.command("batch", cls=SectionedCommand, epilog=NUMBERS_NOTE)
@click.option(
    "-i",
    "--input",
    "source",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help='File of requests, one per line: {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": '
    "{...}}; /v1/completions, /v1/responses and /v1/embeddings work, too.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="File of results, in the order of the requests. Until all are complete they are in FILE.partial.",
)
@batch_options
def command(source: Path, output: Path, replies: ServerConfig, config: EngineConfig) -> None:
    """Run a file of requests in OpenAI's batch format.

    An interrupted run can be resumed: only requests without a result, and those that have changed, run again. A request
    whose body is refused gets an error as its result, and is retried on resume. Lines that are not requests and
    duplicate custom_ids are reported before anything runs. Results have the format of OpenAI's output files.
    """
    if source.resolve() == output.resolve():
        raise ConfigError("--input and --output are the same file")
    if output.is_dir() or not output.resolve().parent.is_dir():
        raise ConfigError(f"--output: {output} must be a file in an existing directory")
    formats = AnswerFormats(replies.tool_call_format, replies.reasoning_parser)
    formats.check()
    enable_logging()
    names = replies.served_model_name or (config.model or DEFAULT_MODEL,)
    tasks = _read_tasks(source, names[0])
    target = PartialOutput(output)
    try:
        done = target.load({custom_id: task.record_id for custom_id, task in tasks.items()})
        missing = {custom_id: task for custom_id, task in tasks.items() if custom_id not in done}
        if done:
            logger.info("%d of %d requests already have answers", len(done), len(tasks))
        failures = _Failures()
        if missing:
            with open_model(config) as llm:
                _answer(llm, _served(llm, names, formats), source, missing, target, failures)
        target.finish(tasks)
    except StorageFull as error:
        raise StorageFull(f"{error}, then run the same command again to resume") from error
    except KeyboardInterrupt:
        logger.info("answers so far are in %s.partial; run the same command again to resume", output)
        raise
    finally:
        target.close()
    failures.report(len(tasks), output)


class _Task(NamedTuple):
    number: int
    """Line number of the request."""
    record_id: str
    """Identifies the request: another body or another model gives another id."""


class _Failures:
    """Counts the lines that got an error instead of an answer."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""

    def add(self, line: InputLine, message: str) -> None:
        self._count += 1
        self._first = self._first or f"line {line.number}, {line.custom_id!r}: {message}"

    def report(self, total: int, output: Path) -> None:
        if self._count:
            raise RequestError(
                f"{self._count} of {total} requests were refused or failed; {output} has the reasons and the other "
                f"answers (first failure: {self._first})"
            )


def _read_tasks(source: Path, model: str) -> dict[str, _Task]:
    """Return the tasks by custom_id, in the order of the file, or raise a RequestError if any line is invalid."""
    try:
        with source.open("rb") as stream:
            verdict = validate(stream, None, limits=_LIMITS)
            if verdict.errors:
                errors = (
                    error.message if error.line is None else f"line {error.line}: {error.message}"
                    for error in verdict.errors
                )
                raise RequestError(f"{source} cannot be answered: {'; '.join(errors)}")
            stream.seek(0)
            return {line.custom_id: _Task(line.number, _record_id(line, model)) for line in read_lines(stream)}
    except OSError as error:
        raise ConfigError(f"--input: cannot read {source}: {error.strerror}") from error


def _record_id(line: InputLine, model: str) -> str:
    request = json.dumps([model, line.url, line.custom_id]).encode("ascii") + line.body
    return "batch_req_" + hashlib.sha256(request).hexdigest()[:32]


def _missing_lines(source: Path, missing: Mapping[str, _Task]) -> Iterator[InputLine]:
    numbers = {task.number for task in missing.values()}
    changed = RequestError(f"{source} changed while it was being answered: run the same command again")
    try:
        with source.open("rb") as stream:
            for line in read_lines(stream):
                if line.number in numbers and line.custom_id not in missing:
                    raise changed
                if line.number in numbers:
                    yield line
    except InputDamaged as error:
        raise changed from error


def _served(llm: "LLM", names: tuple[str, ...], formats: AnswerFormats) -> ServedModel:
    """Return what is needed of the model to read lines and to write replies, as in the service."""
    assembly = llm.assembly
    tool_format = formats.tool_format(assembly.arch.family, assembly.processor.tokenizer)
    reasoning_format = formats.reasoning_format(assembly.processor.tokenizer)
    embedding = EmbeddingSizes(assembly.arch.hidden_size, assembly.embedding_sizes)
    return ServedModel(names, assembly.processor, assembly.recommended, tool_format, reasoning_format, embedding)


def _answer(
    llm: "LLM",
    served: ServedModel,
    source: Path,
    missing: Mapping[str, _Task],
    target: PartialOutput,
    failures: _Failures,
) -> None:
    engine, started = llm.assembly.engine, time.monotonic()
    # Twice as many as run at once: a row that becomes free finds the next request waiting.
    offline = OfflineAnswers(engine, served, 2 * llm.assembly.config.max_num_seqs)
    with ProgressBar("answering", len(missing)) as bar:
        answers = offline.answer(_missing_lines(source, missing))
        for num_done, (line, result) in enumerate(answers, 1):
            record = answered(line.number, line.custom_id, result, missing[line.custom_id].record_id)
            target.append(line.custom_id, record.text)
            if record.is_error:
                failures.add(line, result.body["error"]["message"])
            rate = engine.counts.num_generated_tokens / max(time.monotonic() - started, 1e-9)
            bar.update(num_done, f"{rate:,.0f} tokens/s")
