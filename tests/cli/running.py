"""Runs commands in this process, and the model directory that tests run them on."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner

from archerfish.cli.main import run

RANDOM_LLAMA = Path(__file__).parents[2] / "examples" / "random-llama"

# One thread, because the machine may be busy; a small cache, because every command makes a new one.
MODEL = ("--model", str(RANDOM_LLAMA), "--load-format", "dummy", "--threads", "1", "--max-num-seqs", "4")


class Run(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def archerfish(*arguments: str, stdin: bytes = b"", environ: Mapping[str, str] | None = None) -> Run:
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("ARCHERFISH_")}
    with CliRunner().isolation(input=stdin, env={**clean, **(environ or {})}) as (out, err, _):
        exit_code = run(arguments)
        return Run(exit_code, out.getvalue().decode(), err.getvalue().decode())


def assert_refused(result: Run, says: str) -> None:
    """One line for the user to act on, and nothing else."""
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    assert says in result.stderr
