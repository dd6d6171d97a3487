"""An executor without a model, for tests and benchmarks: tokens come from a function of the sequence."""

from collections import deque
from collections.abc import Callable

from archerfish.scheduling.plan import Chunk, Plan, StepResult

Script = Callable[[tuple[int, ...], int], int]
"""(prompt, length so far) -> next token."""


def count_up(prompt: tuple[int, ...], length: int) -> int:
    """Return a token that depends on the whole prompt and on the position, so that mixed-up rows are noticed."""
    return (hash(prompt) + length) % 997 + 1


class ScriptedStep:
    """A step in flight: its tokens are computed when its result is read, in the order of the launches."""

    def __init__(self, in_flight: "deque[ScriptedStep]", rows: frozenset[int], draw: Callable[[], StepResult]) -> None:
        self.rows = rows
        self._in_flight = in_flight
        self._draw = draw
        self._outcome: StepResult | None = None

    def result(self) -> StepResult:
        if self._outcome is None:
            assert self._in_flight[0] is self, "read results in the order of the launches"
            self._in_flight.popleft()
            self._outcome = self._draw()
        return self._outcome


class ScriptedExecutor:
    """Tracks rows as a real executor does, and refuses plans that a real one could not run."""

    def __init__(
        self,
        script: Script = count_up,
        block_size: int = 16,
        tokens_per_draw: int = 1,
        max_in_flight: int = 1,
        max_draft_tokens: int = 0,
    ) -> None:
        assert tokens_per_draw == 1 or max_in_flight == 1, "later steps must know where earlier ones end"
        self.max_in_flight = max_in_flight
        self.max_draft_tokens = max_draft_tokens or None
        self._script = script
        self._block_size = block_size
        self._tokens_per_draw = tokens_per_draw
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._num_blocks: dict[int, int] = {}
        self._progress: dict[int, int | None] = {}
        """Position that each row's next chunk must start at; None until its first chunk."""
        self._in_flight: deque[ScriptedStep] = deque()
        self.num_steps = 0

    def launch(self, plan: Plan) -> ScriptedStep:
        assert len(self._in_flight) < self.max_in_flight, "read the result of the oldest step first"
        self.num_steps += 1
        for start in plan.starts:
            assert not any(start.row in step.rows for step in self._in_flight), "a step in flight uses the row"
            self._prompts[start.row] = start.tokens[: start.num_prompt_tokens]
            self._num_blocks[start.row] = len(start.blocks[0])
            self._progress[start.row] = None
        for chunk in plan.chunks:
            self._advance(chunk)
        # The prompts as they are now: when the result is read, a later plan may have taken the rows.
        prompts = [self._prompts[chunk.row] for chunk in plan.chunks]
        step = ScriptedStep(
            self._in_flight, frozenset(chunk.row for chunk in plan.chunks), lambda: self._draw(plan, prompts)
        )
        self._in_flight.append(step)
        return step

    def run(self, plan: Plan) -> StepResult:
        """Launch a step and wait for it."""
        return self.launch(plan).result()

    def close(self) -> None:
        assert not self._in_flight, "a step is in flight"
        self._prompts.clear()

    def _advance(self, chunk: Chunk) -> None:
        expected = self._progress[chunk.row]
        if expected is None:
            assert chunk.start <= self._num_blocks[chunk.row] * self._block_size, "tokens are skipped"
        else:
            assert chunk.start == expected, "a chunk must continue where the last one ended"
        self._num_blocks[chunk.row] += len(chunk.new_blocks[0]) if chunk.new_blocks else 0
        end = chunk.start + chunk.length
        last = end + chunk.max_draft_tokens
        assert last <= self._num_blocks[chunk.row] * self._block_size, "a chunk needs blocks to write to"
        assert not chunk.max_draft_tokens or (chunk.samples and self.max_draft_tokens), (
            "a chunk has draft tokens that were not offered"
        )
        self._progress[chunk.row] = end + num_accepted(chunk)

    def _draw(self, plan: Plan, prompts: list[tuple[int, ...]]) -> StepResult:
        tokens: list[list[int]] = []
        for chunk, prompt in zip(plan.chunks, prompts, strict=True):
            end = chunk.start + chunk.length
            drawn = range(end, end + self._tokens_per_draw + num_accepted(chunk)) if chunk.samples else ()
            tokens.append([self._script(prompt, length) for length in drawn])
        verified = {index: chunk.max_draft_tokens for index, chunk in enumerate(plan.chunks) if chunk.max_draft_tokens}
        return StepResult(tokens, num_draft_tokens=verified, max_draft_tokens=self.max_draft_tokens)


def num_accepted(chunk: Chunk) -> int:
    """Return how many draft tokens after a chunk are accepted: by its end, so that all, some and none occur."""
    return min(chunk.max_draft_tokens, (chunk.start + chunk.length) % 3)
