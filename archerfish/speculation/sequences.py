"""The sequences on the executor's rows, as speculation knows them: their methods, how far they are, what is left."""

from collections.abc import Iterable, Mapping, Sequence

from archerfish.scheduling.plan import Plan, SequenceStart
from archerfish.speculation.constants import CONSTANTS
from archerfish.speculation.method import MethodRow, SpeculationMethod


class SpeculatedSequences:
    """Sequences by row. A row's sequence ends when another one starts."""

    def __init__(self, methods: Sequence[SpeculationMethod], default_method: str) -> None:
        self._methods = methods
        self._default_method = default_method
        self.default_methods = self._named(default_method)
        """Methods of requests that choose none."""
        self.starts: dict[int, SequenceStart] = {}
        self._chosen: dict[int, str] = {}
        """Methods of rows whose request chose another than the default."""
        self._num_accepted: dict[int, int] = {}
        """Draft tokens accepted by row."""
        self._num_saved = 0.0
        """Steps saved so far: by which all sequences are ahead."""
        self._num_saved_before: dict[int, float] = {}
        """Steps saved when each row's sequence began."""
        self._mean_answer_length = CONSTANTS.answer_length

    def start(self, start: SequenceStart) -> None:
        """Begin a sequence on its row."""
        row, before = start.row, self.starts.get(start.row)
        if before is not None:
            given = max((method.rows[row].num_given for method in self._methods), default=0)
            if (length := given - before.num_prompt_tokens) > 0:
                decay = CONSTANTS.answer_length_decay
                self._mean_answer_length = decay * self._mean_answer_length + (1 - decay) * length
        self.starts[row] = start
        self._num_accepted[row], self._num_saved_before[row] = 0, self._num_saved
        params = start.params.speculation
        self._chosen.pop(row, None)
        if params is not None and params.method not in (None, self._default_method):
            self._chosen[row] = params.method
        for method in self._methods:
            method.rows[row] = MethodRow()

    # -- methods ------------------------------------------------------------------------------------------------------

    def methods_in_use(self, rows: Iterable[int]) -> Sequence[SpeculationMethod]:
        """Return the methods that any of the rows may use."""
        if not self._chosen:
            return self.default_methods
        names = {self._chosen.get(row, self._default_method) for row in rows}
        return [method for method in self._methods if any(method in self._named(name) for name in names)]

    def may_use(self, method: SpeculationMethod, row: int) -> bool:
        """Whether the row's request chose this method, or chose none."""
        return not self._chosen or method in self._named(self._chosen.get(row, self._default_method))

    def has_chosen(self, method: SpeculationMethod, row: int) -> bool:
        """Whether the row's method was chosen by name, for the request or for all."""
        return self._chosen.get(row, self._default_method) == method.name

    def _named(self, name: str) -> Sequence[SpeculationMethod]:
        if name == "auto":
            return [method for method in self._methods if not method.all_or_nothing]
        return [method for method in self._methods if method.name == name]

    # -- progress -----------------------------------------------------------------------------------------------------

    def num_left(self, row: int, length: int) -> float:
        """Return the tokens that are probably still to come: the mean, unless the request's limit comes first."""
        start = self.starts[row]
        limit = start.params.max_tokens
        left = self._mean_answer_length if limit is None else limit - (length - start.num_prompt_tokens)
        return min(left, self._mean_answer_length)

    def record_accepted(self, row: int, num_accepted: int) -> None:
        """Record that so many draft tokens of a row were accepted."""
        self._num_accepted[row] += num_accepted

    def take_saved_steps(self, rows: Sequence[int], *, others_wait: bool) -> float:
        """Return the steps saved since the last call.

        Sequences of a batch end together only if all of them advance: a step that one of them saves is run all the same
        for the others, unless requests wait for its row.
        """
        ahead = [self._num_saved_before[row] + self._num_accepted[row] for row in rows]
        level = (sum(ahead) / len(ahead) if others_wait else min(ahead)) if ahead else 0.0
        before, self._num_saved = self._num_saved, max(self._num_saved, level)
        return self._num_saved - before

    def token_values(self, plan: Plan, expected: Mapping[int, float]) -> dict[int, float]:
        """Return by chunk what a token written ahead is worth, given the draft tokens that it probably accepts."""
        sampling = [index for index, chunk in enumerate(plan.chunks) if chunk.samples]
        if plan.others_wait or len(sampling) <= 1:
            return dict.fromkeys(sampling, 1.0)
        num_left, speeds, prior = [], [], CONSTANTS.speed_prior_steps
        for index in sampling:
            row, length = plan.chunks[index].row, plan.chunks[index].start + plan.chunks[index].length
            num_generated = length - len(self.starts[row].tokens)
            num_steps = num_generated - self._num_accepted[row]
            num_left.append(self.num_left(row, length))
            speeds.append(max(1 + expected.get(index, 0.0), (num_generated + prior) / (num_steps + prior)))
        return dict(zip(sampling, token_values(num_left, speeds), strict=True))


def token_values(num_left: Sequence[float], speeds: Sequence[float]) -> list[float]:
    """Return what a token written ahead is worth to each sequence of a batch, as a share of what it costs.

    The sequences have so many tokens left, and write so many in a step. A batch takes as many steps as its slowest
    sequence: what others write ahead of it saves nothing, and nothing is saved if it cannot be sped up.
    """
    if len(num_left) <= 1:
        return [1.0] * len(num_left)
    fast = CONSTANTS.fast_tokens_per_step
    end = max(left / (speed if speed >= fast else 1.0) for left, speed in zip(num_left, speeds, strict=True))
    ahead = [max(0.0, left - end) for left in num_left]
    if not any(ahead):
        return [0.0] * len(num_left)
    # Steps that are saved if all of `ahead` is written; each takes as long as all tokens of a step cost.
    value = len(num_left) * (max(num_left) - end) / sum(ahead)
    return [value if num_ahead else 0.0 for num_ahead in ahead]
