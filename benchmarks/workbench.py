"""What the benchmarks share: a random model of a small real shape, arrivals played against the clock, tables."""

import json
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from archerfish import LLM, SamplingParams
from archerfish.engine.outputs import OutputStream, RequestOutput

SMALL = {
    "model_type": "llama",
    "vocab_size": 8192,
    "hidden_size": 320,
    "intermediate_size": 896,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class Arrival:
    """One request of a workload."""

    time: float
    prompt: list[int]
    num_tokens: int


@contextmanager
def small_model(**settings: Any) -> Iterator[LLM]:
    """About 13 M parameters with random weights: real arithmetic, meaningless answers."""
    logging.getLogger("archerfish").addHandler(logging.NullHandler())  # Only the tables speak.
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(SMALL))
        with LLM(directory, load_format="dummy", **{"max_num_seqs": 16, "max_model_len": 2048, **settings}) as llm:
            llm.generate([1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True), progress=False)  # Warm-up.
            yield llm


def random_prompt(rng: np.random.Generator, length: int) -> list[int]:
    return [int(token) for token in rng.integers(3, SMALL["vocab_size"], length)]


def play(llm: LLM, arrivals: Sequence[Arrival]) -> tuple[list[RequestOutput], float]:
    """Serve requests as they arrive; the outputs, and the seconds until the last one ended."""
    engine, processor = llm.assembly.engine, llm.assembly.processor
    engine.scheduler.expects_more = True
    started = engine.clock()
    pending, streams = list(arrivals), {}
    while pending or not all(stream.finished for stream in streams.values()):
        now = engine.clock() - started
        while pending and pending[0].time <= now:
            arrival = pending.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=arrival.num_tokens, ignore_eos=True)
            request = processor.request(arrival.prompt, params)
            engine.add(request)
            streams[request.request_id] = OutputStream(request, None, None, lambda *_: None)
        engine.scheduler.expects_more = bool(pending)
        events = engine.step()
        for event in events:
            streams[event.request_id].add(event, engine.clock())
        if not events:
            time.sleep(0.0005)  # Nothing can run until the next arrival or the end of a window.
    return [stream.output for stream in streams.values()], engine.clock() - started


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(title=title)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
