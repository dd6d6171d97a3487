"""Compiles forms for the first time, in a process of its own: one that takes all time or memory ends only that.

The library's limits do not count everything. Expressions that must all match multiply, say, and a schema of a few lines
can then be worked on for ever; threads cannot be ended, and neither an engine nor a server can wait.

python -m archerfish.sampling.trial HANDLE
"""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import finalize

from archerfish.errors import InvalidParameter, RequestError
from archerfish.request import Structured
from archerfish.sampling.forms import check_form, compile_form, load_vocabulary, why

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from archerfish.tokenizer import Tokenizer

_MOST_SECONDS = 1.0
"""Of processor time for a form, whatever else the machine does. Ordinary ones take milliseconds."""
_LONGEST_WAIT = 30.0
"""Seconds for a form, the start of the process included. One that is not tried by then hangs, and is ended."""
_MOST_BYTES = 3 << 30
"""Of address space, of which stacks and the vocabulary take a part."""
_TRIED_SECONDS = 0.2
"""Of processor time for each beginning of an answer that is written to try the form."""
_TRIED_TOKENS = 64
_FEWEST_TRIED = 2
"""Tokens that are tried however long they take: what many properties allow shows behind the opening brace."""
_MOST_KEPT = 64
"""Verdicts: clients tend to use a few forms, again and again."""


class Trial:
    """Says whether a model's answers can be given a form. The process starts with the first question."""

    def __init__(self, tokenizer: "Tokenizer | None" = None, vocab_size: int = 0) -> None:
        """Without a tokenizer, what depends on a vocabulary is not noticed."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._worker: _Worker | None = None
        self._verdicts: OrderedDict[Structured, _Verdict] = OrderedDict()
        """Of the forms that were asked for last."""
        self._looking = threading.Lock()
        self._trying = threading.Lock()

    def check(self, structured: Structured) -> None:
        """Raises what is wrong with it."""
        verdict = self._find(structured)
        if verdict is None:
            with self._trying:
                # Another thread may have tried the same form while this one waited.
                verdict = self._find(structured) or self._keep(structured, _Verdict(self._try(structured)))
        if verdict.problem is not None:
            raise InvalidParameter(structured.given, "...", verdict.problem)

    def knows(self, structured: Structured) -> bool:
        """Whether the form was tried before, so that `check` does not wait for the other process."""
        return self._find(structured) is not None

    def _find(self, structured: Structured) -> "_Verdict | None":
        with self._looking:
            if structured in self._verdicts:
                self._verdicts.move_to_end(structured)
            return self._verdicts.get(structured)

    def _keep(self, structured: Structured, verdict: "_Verdict") -> "_Verdict":
        with self._looking:
            self._verdicts[structured] = verdict
            if len(self._verdicts) > _MOST_KEPT:
                self._verdicts.popitem(last=False)
        return verdict

    def _try(self, structured: Structured) -> str | None:
        if find_spec("llguidance") is None:
            return "it needs llguidance, which this machine does not have: pip install llguidance"
        worker, self._worker = self._worker or self._start(), None
        # Its limit is on processor time, so that a busy machine refuses nothing; one that hangs uses none.
        hang = threading.Timer(_LONGEST_WAIT, worker.process.kill)
        hang.daemon = True
        hang.start()
        try:
            worker.connection.send(structured)
            problem: str | None = worker.connection.recv()
        except (EOFError, OSError):
            code = worker.process.wait()
            if not hang.is_alive() and code == -signal.SIGKILL:
                raise RequestError(
                    f"the response format could not be tried within {_LONGEST_WAIT:g} seconds; try again"
                ) from None
            return _why_ended(code)
        finally:
            hang.cancel()
        self._worker = worker
        return problem

    def _start(self) -> "_Worker":
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "archerfish.sampling.trial", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # A Ctrl-C is not for it.
        )
        theirs.close()
        finalize(self, _end, process, ours)
        tokenizer = self._tokenizer
        with suppress(OSError):  # If it could not start, the next message will show.
            if tokenizer is None:
                ours.send(None)
            else:
                ours.send((tokenizer.to_json(), max(self._vocab_size, tokenizer.vocab_size)))
        return _Worker(process, ours)


class _Verdict(NamedTuple):
    problem: str | None
    """What is wrong with the form; None if nothing is."""


class _Worker(NamedTuple):
    process: "subprocess.Popen[bytes]"
    connection: "Connection[object, str | None]"


_ANY_MODEL = Trial()


def check_structured(structured: Structured) -> None:
    """Raises what is wrong with it for any model."""
    _ANY_MODEL.check(structured)


def _end(process: "subprocess.Popen[bytes]", connection: "Connection[object, str | None]") -> None:
    connection.close()
    process.wait()


def _why_ended(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"compiling it takes more than {_MOST_SECONDS:g} s; make it smaller, or combine fewer expressions"
    return f"compiling it takes more than {_MOST_BYTES >> 30} GiB; make it smaller, or nest it less"


def main(handle: int) -> None:
    """Answers one form after the other until the other end is closed."""
    connection: Connection[str | None, Any] = Connection(handle)
    with suppress(EOFError):
        model = connection.recv()
        judge = _problem if model is None else _judge(*model)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
        while True:
            structured = connection.recv()
            signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS)  # The signal ends this process.
            problem = judge(structured)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(problem)


def _judge(tokenizer: str, num_tokens: int) -> Callable[[Structured], str | None]:
    """What is wrong with a form for this model, if anything is."""
    try:
        vocabulary = load_vocabulary(tokenizer, num_tokens, [0])
    except ValueError as error:
        problem = f"no form can be kept to with this model's tokenizer ({error})"
        return lambda _: problem
    return lambda structured: _problem(structured, vocabulary)


def _problem(structured: Structured, vocabulary: "LLTokenizer | None" = None) -> str | None:
    try:
        if vocabulary is None:
            check_form(structured)
            return None
        matcher = compile_form(structured, vocabulary)
    except ValueError as error:
        return str(error)
    # A limit of its own for following: what compiles in time must not be refused for what a slow machine has left.
    if signal.getitimer(signal.ITIMER_PROF)[0]:
        signal.setitimer(signal.ITIMER_PROF, _MOST_SECONDS)
    # Of a byte-pair vocabulary the last tokens are long texts; those in the middle are words.
    for share in (1.0, 0.5):
        problem = _follow(matcher.deep_copy(), share)
        if problem is not None:
            return problem
    return None


def _follow(matcher: "LLMatcher", share: float) -> str | None:
    """Write the beginning of an answer; why it cannot go on, if so. Some forms compile and cannot be followed.

    Of the tokens that may come next the one at this share of the list is taken.
    """
    import numpy as np

    end = time.process_time() + _TRIED_SECONDS
    for number in range(_TRIED_TOKENS):
        mask = matcher.compute_bitmask()  # What the first token could be is part of the work.
        if matcher.is_error():
            return why(matcher)
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        if matcher.is_stopped() or not len(allowed):
            break
        if number >= _FEWEST_TRIED and time.process_time() > end:
            break
        matcher.consume_token(int(allowed[round(share * (len(allowed) - 1))]))
        if matcher.is_error():
            return why(matcher)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
