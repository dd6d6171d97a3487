"""The sequences on the executor's rows as the controller knows them: their methods, lengths and progress."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from archerfish.execution.step.rows import Rows
from archerfish.scheduling.plan import SequenceStart
from archerfish.speculation.batch_progress import BatchProgress, token_values
from archerfish.speculation.method import SpeculationMethod
from archerfish.speculation.step_timer import Clock

_INITIAL_ANSWER_LENGTH = 64.0
"""Tokens of an answer, assumed before any was seen."""
_ANSWER_LENGTH_DECAY = 0.9


class SpeculatedRows:
    """Sequences by row, and what each method's proposer has been given of them."""

    def __init__(
        self,
        methods: Sequence[SpeculationMethod],
        default_method: str,
        rows: Rows,
        clock: Clock,
        exclude: Callable[[float], None],
    ) -> None:
        """`exclude` is called with seconds that should not count as part of a step."""
        self._methods = methods
        self._default_method = default_method
        self._rows = rows
        self._clock = clock
        self._exclude = exclude
        self._starts: dict[int, SequenceStart] = {}
        self._chosen: dict[int, str] = {}
        """Methods of rows whose request chose another than the default."""
        self._num_given: dict[int, dict[str, int]] = {}
        """Tokens that each proposer was given, by row and method. None of a row are given before its first use."""
        self._progress = BatchProgress()
        self._mean_answer_length = _INITIAL_ANSWER_LENGTH
        self.default_methods = self._named(default_method)
        """Methods of requests that choose none."""

    def start(self, start: SequenceStart) -> None:
        """Begin a sequence on its row."""
        row, before = start.row, self._starts.get(start.row)
        if before is not None:
            length = max(self._num_given[row].values(), default=0) - before.num_prompt_tokens
            if length > 0:
                self._mean_answer_length += (1 - _ANSWER_LENGTH_DECAY) * (length - self._mean_answer_length)
        self._starts[row] = start
        self._num_given[row] = {}
        self._progress.start(row)
        params = start.params.speculation
        self._chosen.pop(row, None)
        if params is not None and params.method not in (None, self._default_method):
            self._chosen[row] = params.method
        for method in self._methods:
            method.acceptance.start(row)
            method.backoff.start(row)
            method.expected_drafts.start(row)

    def methods_in_use(self, rows: Iterable[int]) -> Sequence[SpeculationMethod]:
        """Return the methods that any of the rows may use."""
        if not self._chosen:
            return self.default_methods
        names = {self._chosen.get(row, self._default_method) for row in rows}
        return [method for method in self._methods if any(method in self._named(name) for name in names)]

    def may_use(self, method: SpeculationMethod, row: int) -> bool:
        """Whether the row's request chose this method, or chose none."""
        return not self._chosen or method in self._named(self._chosen.get(row, self._default_method))

    def _named(self, name: str) -> Sequence[SpeculationMethod]:
        if name == "auto":
            return [method for method in self._methods if not method.all_or_nothing]
        return [method for method in self._methods if method.name == name]

    def feed(self, method: SpeculationMethod, row: int, length: int) -> None:
        """Give a proposer the tokens of a row up to a length that it does not have yet."""
        given = self._num_given[row]
        num_given = given.get(method.name)
        if num_given is None:
            start, started = self._starts[row], self._clock()
            method.proposer.start(row, start.tokens, start.num_prompt_tokens, start.tenant)
            num_given = len(start.tokens)
            self._exclude(self._clock() - started)
        if num_given < length:
            method.proposer.extend(row, self._rows.tokens[row, num_given:length].tolist())
        given[method.name] = length

    def num_left(self, row: int, length: int) -> float:
        """Return the tokens that are probably still to come: the mean, unless the request's limit comes first."""
        start = self._starts[row]
        limit = start.params.max_tokens
        left = self._mean_answer_length if limit is None else limit - (length - start.num_prompt_tokens)
        return min(left, self._mean_answer_length)

    def take_saved_steps(self, lengths: Mapping[int, int], step: int) -> int:
        """Return the steps that all of these rows have got ahead by since the last call."""
        return self._progress.take_saved_steps(self._num_generated(lengths), step)

    def token_values(
        self, lengths: Mapping[int, int], expected: Mapping[int, float], step: int, *, others_wait: bool
    ) -> dict[int, float]:
        """Return by row what a token more is worth, if so many draft tokens are probably accepted in this step."""
        if others_wait or len(lengths) <= 1:
            return dict.fromkeys(lengths, 1.0)
        num_left = {row: self.num_left(row, length) for row, length in lengths.items()}
        self._progress.observe(self._num_generated(lengths), step)
        speeds = {row: max(1 + expected.get(row, 0.0), self._progress.speed(row)) for row in lengths}
        return token_values(num_left, speeds)

    def _num_generated(self, lengths: Mapping[int, int]) -> dict[int, int]:
        """Return the tokens generated since each row's sequence started on it."""
        return {row: length - len(self._starts[row].tokens) for row, length in lengths.items()}
