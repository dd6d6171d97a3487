"""What a stream makes of events: a stop token ends the text, and stays among the token ids."""

import pytest

from archerfish.engine.outputs import OutputStream
from archerfish.request import Best, FinishReason, Request, SamplingParams, TokenEvent, TokenLogprobs
from archerfish.tokenizer import Tokenizer
from tests.checkpoints import write_tokenizer

EOS = 1


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return Tokenizer.load(directory)


def collect(tokenizer: Tokenizer, params: SamplingParams, steps: list[list[int]], reason: FinishReason) -> OutputStream:
    request = Request(request_id="a", prompt_token_ids=(5,), params=params, arrival_time=0.0)
    stream = OutputStream(request, None, tokenizer, lambda *_: None)
    for place, token_ids in enumerate(steps):
        last = place == len(steps) - 1
        stream.add(TokenEvent("a", 0, token_ids, finish_reason=reason if last else None), 1.0)
    return stream


@pytest.mark.parametrize("several", [False, True], ids=["one token a step", "all in one step"])
def test_the_text_ends_before_a_stop_token_unless_it_is_asked_for(tokenizer: Tokenizer, several: bool) -> None:
    token_ids = tokenizer.encode("quick brown fox", add_special_tokens=False)
    steps = [token_ids] if several else [[token] for token in token_ids]
    before, whole = tokenizer.decode(token_ids[:-1]), tokenizer.decode(token_ids)
    assert before != whole
    stop_token_ids = (token_ids[-1],)
    for include, reason, text in (
        (False, FinishReason.STOP, before),
        (True, FinishReason.STOP, whole),
        (False, FinishReason.LENGTH, whole),
    ):
        params = SamplingParams(stop_token_ids=stop_token_ids, include_stop_str_in_output=include)
        answer = collect(tokenizer, params, steps, reason).result.outputs[0]
        assert (answer.text, answer.token_ids) == (text, token_ids)
        assert answer.finish_reason == reason.value


@pytest.mark.parametrize("include", [False, True])
def test_a_visible_end_token_is_no_part_of_the_text_unless_it_is_asked_for(tokenizer: Tokenizer, include: bool) -> None:
    params = SamplingParams(skip_special_tokens=False, include_stop_str_in_output=include)
    fox = tokenizer.encode("fox", add_special_tokens=False)
    answer = collect(tokenizer, params, [fox, [EOS]], FinishReason.STOP).result.outputs[0]
    assert answer.text == ("fox</s>" if include else "fox")
    assert answer.token_ids == [*fox, EOS]


def test_a_stop_token_does_not_complete_a_stop_text(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("quick fox", add_special_tokens=False)
    params = SamplingParams(stop=("x",), stop_token_ids=(token_ids[-1],))
    answer = collect(tokenizer, params, [token_ids], FinishReason.STOP).result.outputs[0]
    assert answer.text == tokenizer.decode(token_ids[:-1])
    assert answer.token_ids == token_ids


def test_a_stop_text_before_the_stop_token_ends_the_answer_there(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("quick fox", add_special_tokens=False)
    first = tokenizer.decode(token_ids[:1])
    params = SamplingParams(stop=(first,), stop_token_ids=(token_ids[-1],))
    answer = collect(tokenizer, params, [token_ids], FinishReason.STOP).result.outputs[0]
    assert (answer.text, answer.token_ids, answer.stop_reason) == ("", token_ids[:1], first)


def test_a_sequence_stopped_from_outside_loses_no_text(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("quick fox", add_special_tokens=False)
    answer = collect(tokenizer, SamplingParams(), [token_ids, []], FinishReason.STOP).result.outputs[0]
    assert answer.text == "quick fox"


def one_of_three(tokenizer: Tokenizer, *, shows_logprobs: bool) -> OutputStream:
    """Three answers of one token each, the second the likeliest and the first the least likely."""
    params = SamplingParams(n=3, logprobs=0)
    best = Best(2, shows_logprobs=shows_logprobs)
    request = Request(request_id="a", prompt_token_ids=(5,), params=params, arrival_time=0.0, best=best)
    stream = OutputStream(request, None, tokenizer, lambda *_: None)
    for index, logprob in ((2, -2.0), (0, -3.0), (1, -1.0)):
        entry = TokenLogprobs(10 + index, logprob, 1, [])
        event = TokenEvent("a", index, [10 + index], [entry], finish_reason=FinishReason.LENGTH)
        assert not stream.finished and stream.add(event, 1.0) is None
    return stream


@pytest.mark.parametrize("shows_logprobs", [False, True])
def test_the_likeliest_answers_are_returned_when_all_are_there(tokenizer: Tokenizer, shows_logprobs: bool) -> None:
    stream = one_of_three(tokenizer, shows_logprobs=shows_logprobs)
    answers = stream.result.outputs
    assert stream.finished and [(answer.index, answer.token_ids) for answer in answers] == [(0, [11]), (1, [12])]
    shown = [answer.cumulative_logprob for answer in answers]
    assert shown == ([-1.0, -2.0] if shows_logprobs else [None, None])
    assert stream.usage.num_generated_tokens == 3, "the answers that are not returned were generated, too"
    late = TokenEvent("a", 2, [5], finish_reason=FinishReason.LENGTH)
    assert stream.add(late, 2.0) is None and stream.result.outputs == answers


def test_an_answer_that_failed_is_not_among_the_best(tokenizer: Tokenizer) -> None:
    params = SamplingParams(n=2, logprobs=0)
    request = Request(request_id="a", prompt_token_ids=(5,), params=params, arrival_time=0.0, best=Best(1, True))
    stream = OutputStream(request, None, tokenizer, lambda *_: None)
    stream.add(TokenEvent("a", 0, [], finish_reason=FinishReason.ERROR, error="no token"), 1.0)
    entry = TokenLogprobs(7, -5.0, 1, [])
    stream.add(TokenEvent("a", 1, [7], [entry], finish_reason=FinishReason.STOP), 1.0)
    assert [answer.token_ids for answer in stream.result.outputs] == [[7]]


def test_without_text_there_are_token_ids_alone(tokenizer: Tokenizer) -> None:
    fox = tokenizer.encode("fox", add_special_tokens=False)
    answer = collect(tokenizer, SamplingParams(detokenize=False), [fox], FinishReason.LENGTH).result.outputs[0]
    assert (answer.text, answer.token_ids) == ("", fox) and answer.finished()
