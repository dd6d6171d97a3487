"""An executor without a model: tokens come from a function of the sequence. For tests, and to time everything else."""

from collections.abc import Callable

from archerfish.scheduling.plan import Plan, StepResult

Script = Callable[[tuple[int, ...], int], int]
"""(prompt, length so far) -> next token."""


def count_up(prompt: tuple[int, ...], length: int) -> int:
    """A token that depends on the whole prompt and on the position, so that mixed-up rows are noticed."""
    return (hash(prompt) + length) % 997 + 1


class ScriptedExecutor:
    """Keeps rows as a real executor does, and refuses plans that a real one could not run."""

    def __init__(self, script: Script = count_up, block_size: int = 16, tokens_per_draw: int = 1) -> None:
        self._script = script
        self._block_size = block_size
        self._tokens_per_draw = tokens_per_draw
        self._prompts: dict[int, tuple[int, ...]] = {}
        self._num_blocks: dict[int, int] = {}
        self._progress: dict[int, int | None] = {}
        """For each row, the position its next chunk must start at; None until its first chunk."""
        self.num_steps = 0

    def run(self, plan: Plan) -> StepResult:
        self.num_steps += 1
        for start in plan.starts:
            self._prompts[start.row] = start.tokens[: start.num_prompt_tokens]
            self._num_blocks[start.row] = len(start.blocks[0])
            self._progress[start.row] = None
        tokens: list[list[int]] = []
        for chunk in plan.chunks:
            expected = self._progress[chunk.row]
            if expected is None:
                assert chunk.start <= self._num_blocks[chunk.row] * self._block_size, "tokens are skipped"
            else:
                assert chunk.start == expected, "a chunk must continue where the last one ended"
            self._num_blocks[chunk.row] += len(chunk.new_blocks[0]) if chunk.new_blocks else 0
            end = chunk.start + chunk.length
            assert end <= self._num_blocks[chunk.row] * self._block_size, "a chunk needs blocks to write to"
            self._progress[chunk.row] = end
            drawn = range(end, end + self._tokens_per_draw) if chunk.samples else ()
            tokens.append([self._script(self._prompts[chunk.row], length) for length in drawn])
        return StepResult(tokens)

    def close(self) -> None:
        self._prompts.clear()
