"""Compiles grammars for the first time, in a process of its own: one that takes all time or memory ends only that.

The library's limits do not count everything. Expressions that must all match multiply, say, and a schema of a few lines
can then be worked on for ever; threads cannot be ended, and neither an engine nor a server can wait.

python -m archerfish.sampling.grammar_sandbox HANDLE
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
from archerfish.sampling.grammar_compiler import check_grammar, compile_grammar, load_vocabulary, why

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from archerfish.tokenizer import Tokenizer

_MAX_SECONDS = 1.0
"""Processor time to compile a grammar, whatever else the machine does. Ordinary ones take milliseconds."""
_MAX_WAIT = 30.0
"""Seconds to try a grammar, the start of the process included. A process that takes longer hangs, and is killed."""
_MAX_BYTES = 3 << 30
"""Limit of address space, of which stacks and the vocabulary take a part."""
_TRIED_SECONDS = 0.2
"""Processor time for each beginning of an answer that is generated to try the grammar."""
_MAX_TRIED_TOKENS = 64
_MIN_TRIED_TOKENS = 2
"""Tokens that are tried however long they take: the effect of many properties shows after the opening brace."""
_MAX_VERDICTS = 64
"""Cached verdicts: clients tend to use a few grammars, again and again."""


class GrammarSandbox:
    """Decides whether a model's answers can follow a grammar. The process starts with the first grammar."""

    def __init__(self, tokenizer: "Tokenizer | None" = None, vocab_size: int = 0) -> None:
        """Without a tokenizer, problems that depend on the vocabulary are not noticed."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._worker: _Worker | None = None
        self._verdicts: OrderedDict[Structured, _GrammarVerdict] = OrderedDict()
        """Verdicts on the grammars that were checked last."""
        self._lookup_lock = threading.Lock()
        self._trial_lock = threading.Lock()

    def check(self, structured: Structured) -> None:
        """Raise InvalidParameter if answers cannot follow this grammar."""
        verdict = self._find(structured)
        if verdict is None:
            with self._trial_lock:
                # Another thread may have tried the same grammar while this one waited.
                verdict = self._find(structured) or self._store(structured, _GrammarVerdict(self._try(structured)))
        if verdict.problem is not None:
            raise InvalidParameter(structured.given, "...", verdict.problem)

    def has_verdict(self, structured: Structured) -> bool:
        """Return whether the grammar was tried before, so that `check` does not wait for the other process."""
        return self._find(structured) is not None

    def _find(self, structured: Structured) -> "_GrammarVerdict | None":
        with self._lookup_lock:
            if structured in self._verdicts:
                self._verdicts.move_to_end(structured)
            return self._verdicts.get(structured)

    def _store(self, structured: Structured, verdict: "_GrammarVerdict") -> "_GrammarVerdict":
        with self._lookup_lock:
            self._verdicts[structured] = verdict
            if len(self._verdicts) > _MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        return verdict

    def _try(self, structured: Structured) -> str | None:
        if find_spec("llguidance") is None:
            return "it needs llguidance, which this machine does not have: pip install llguidance"
        worker, self._worker = self._worker or self._start(), None
        # Its limit is on processor time, so that a busy machine refuses nothing; one that hangs uses none.
        hang = threading.Timer(_MAX_WAIT, worker.process.kill)
        hang.daemon = True
        hang.start()
        try:
            worker.connection.send(structured)
            problem: str | None = worker.connection.recv()
        except (EOFError, OSError):
            code = worker.process.wait()
            if not hang.is_alive() and code == -signal.SIGKILL:
                raise RequestError(
                    f"the response format could not be tried within {_MAX_WAIT:g} seconds; try again"
                ) from None
            return _why_ended(code)
        finally:
            hang.cancel()
        self._worker = worker
        return problem

    def _start(self) -> "_Worker":
        ours, theirs = Pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "archerfish.sampling.grammar_sandbox", str(theirs.fileno())],
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


class _GrammarVerdict(NamedTuple):
    problem: str | None
    """What is wrong with the grammar; None if nothing is."""


class _Worker(NamedTuple):
    process: "subprocess.Popen[bytes]"
    connection: "Connection[object, str | None]"


_ANY_MODEL = GrammarSandbox()


def check_structured(structured: Structured) -> None:
    """Raise InvalidParameter if no model's answers can follow this grammar."""
    _ANY_MODEL.check(structured)


def _end(process: "subprocess.Popen[bytes]", connection: "Connection[object, str | None]") -> None:
    connection.close()
    process.wait()


def _why_ended(code: int) -> str:
    if code == -signal.SIGPROF:
        return f"compiling it takes more than {_MAX_SECONDS:g} s; make it smaller, or combine fewer expressions"
    return f"compiling it takes more than {_MAX_BYTES >> 30} GiB; make it smaller, or nest it less"


def main(handle: int) -> None:
    """Return a verdict for one grammar after the other until the connection is closed."""
    connection: Connection[str | None, Any] = Connection(handle)
    with suppress(EOFError):
        model = connection.recv()
        find_problem = _problem if model is None else _problem_finder(*model)
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_BYTES, _MAX_BYTES))
        while True:
            structured = connection.recv()
            signal.setitimer(signal.ITIMER_PROF, _MAX_SECONDS)  # The signal ends this process.
            problem = find_problem(structured)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(problem)


def _problem_finder(tokenizer: str, num_tokens: int) -> Callable[[Structured], str | None]:
    """Return the function that says what is wrong with a grammar for this model, if anything is."""
    try:
        vocabulary = load_vocabulary(tokenizer, num_tokens, [0])
    except ValueError as error:
        problem = f"answers cannot follow a grammar with this model's tokenizer ({error})"
        return lambda _: problem
    return lambda structured: _problem(structured, vocabulary)


def _problem(structured: Structured, vocabulary: "LLTokenizer | None" = None) -> str | None:
    try:
        if vocabulary is None:
            check_grammar(structured)
            return None
        matcher = compile_grammar(structured, vocabulary)
    except ValueError as error:
        return str(error)
    # A limit of its own for following: what compiles in time must not be refused for what a slow machine has left.
    if signal.getitimer(signal.ITIMER_PROF)[0]:
        signal.setitimer(signal.ITIMER_PROF, _MAX_SECONDS)
    # Of a byte-pair vocabulary the last tokens are long texts; those in the middle are words.
    for share in (1.0, 0.5):
        problem = _follow(matcher.deep_copy(), share)
        if problem is not None:
            return problem
    return None


def _follow(matcher: "LLMatcher", share: float) -> str | None:
    """Generate the beginning of an answer and return why it cannot go on, if so: some grammars only compile.

    Among the tokens that may come next, the one at this share of the list is taken.
    """
    import numpy as np

    end = time.process_time() + _TRIED_SECONDS
    for number in range(_MAX_TRIED_TOKENS):
        mask = matcher.compute_bitmask()  # What the first token could be is part of the work.
        if matcher.is_error():
            return why(matcher)
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        if matcher.is_stopped() or not len(allowed):
            break
        if number >= _MIN_TRIED_TOKENS and time.process_time() > end:
            break
        matcher.consume_token(int(allowed[round(share * (len(allowed) - 1))]))
        if matcher.is_error():
            return why(matcher)
    return None


if __name__ == "__main__":
    main(int(sys.argv[1]))
