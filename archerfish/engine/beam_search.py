"""Beam search: the likeliest answers as a whole, found by keeping several beginnings at each step. Knows no engine.

Each step asks for the likeliest next tokens of every beam. A beam is a request of its own; what its prompt shares with
the others and with its own last step is in the prefix cache.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from archerfish.engine.outputs import Logprobs, RequestOutput
from archerfish.errors import RequestError
from archerfish.request import SamplingParams
from archerfish.sampling_params import BeamSearchParams

RunRequests = Callable[[list[list[int]], SamplingParams], list[RequestOutput]]
"""Answers prompts of token ids, all with the same parameters."""


@dataclass(slots=True)
class BeamSearchSequence:
    """One answer, complete or still a beam."""

    tokens: list[int]
    """Of prompt and answer."""
    logprobs: list[Logprobs]
    """Of each token of the answer: the candidates of its step."""
    cum_logprob: float = 0.0
    text: str | None = None
    """Of prompt and answer, once the search is over."""
    finish_reason: str | None = None
    """stop or length."""
    stop_reason: int | str | None = None

    def score(self, length_penalty: float) -> float:
        """What answers are ordered by."""
        return self.cum_logprob / float(len(self.logprobs) ** length_penalty)


@dataclass(slots=True)
class BeamSearchOutput:
    """The best answers to one prompt, the best first."""

    sequences: list[BeamSearchSequence]


@dataclass(slots=True)
class _Search:
    """One prompt's beams, and its complete answers."""

    beams: list[BeamSearchSequence]
    complete: list[BeamSearchSequence] = field(default_factory=list)


class BeamSearch:
    """A search with one set of parameters over any number of prompts."""

    def __init__(
        self, params: BeamSearchParams, run: RunRequests, eos_token_ids: Sequence[int], vocab_size: int, most: int
    ) -> None:
        """`most` is the longest that prompt and answer may become."""
        self._params = params
        self._run = run
        self._ends = frozenset(() if params.ignore_eos else eos_token_ids)
        self._most = most
        # So many that enough remain to go on where all ends are among them.
        count = params.beam_width + max(params.beam_width, len(self._ends))
        self._step_params = SamplingParams(
            temperature=0.0, max_tokens=1, logprobs=min(count, vocab_size), detokenize=False, ignore_eos=True
        )

    def search(self, prompts: Sequence[Sequence[int]], on_step: Callable[[int], None]) -> list[BeamSearchOutput]:
        """The best answers to each prompt; `on_step` is called with the number of steps that were made."""
        searches = [_Search([BeamSearchSequence(list(prompt), [])]) for prompt in prompts]
        for step in range(1, self._params.max_tokens + 1):
            beams = [beam for search in searches for beam in search.beams]
            if not beams:
                break
            outputs = iter(self._run([beam.tokens for beam in beams], self._step_params))
            for search in searches:
                self._advance(search, [_candidates(next(outputs)) for _ in search.beams])
            on_step(step)
        for search in searches:
            self._finish(search, search.beams)
        return [BeamSearchOutput(search.complete) for search in searches]

    def _advance(self, search: _Search, candidates: list[Logprobs]) -> None:
        """Replace the beams by their best continuations."""
        width, extended, ended = self._params.beam_width, [], []
        for beam, likeliest in zip(search.beams, candidates, strict=True):
            for token, candidate in likeliest.items():
                longer = BeamSearchSequence(
                    [*beam.tokens, token], [*beam.logprobs, likeliest], beam.cum_logprob + candidate.logprob
                )
                if token in self._ends:
                    longer.finish_reason, longer.stop_reason = "stop", token
                    ended.append(longer)
                else:
                    extended.append(longer)
        # All have the same length. Sorting is stable: of equals, the one from the better beam comes first.
        search.beams = sorted(extended, key=lambda beam: -beam.cum_logprob)[:width]
        self._finish(search, ended)
        if search.beams and len(search.beams[0].tokens) >= self._most:
            self._finish(search, search.beams)
            search.beams = []

    def _finish(self, search: _Search, answers: Sequence[BeamSearchSequence]) -> None:
        """Take answers that are complete, and keep the best of all."""
        for answer in answers:
            answer.finish_reason = answer.finish_reason or "length"
        penalty = self._params.length_penalty
        ranked = sorted([*search.complete, *answers], key=lambda answer: -answer.score(penalty))
        search.complete = ranked[: self._params.beam_width]


def _candidates(output: RequestOutput) -> Logprobs:
    """The likeliest next tokens of a beam, or a RequestError with the reason why there are none."""
    [answer] = output.outputs
    if not answer.logprobs:
        raise RequestError(answer.error or f"a beam could not go on: it ended with {answer.finish_reason}")
    return answer.logprobs[0]
