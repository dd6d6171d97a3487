"""What is refused before it reaches a scheduler, which may live in another process."""

import json
from pathlib import Path

import pytest

from archerfish.config import EngineConfig
from archerfish.engine.build import build
from archerfish.engine.input_processor import InputProcessor
from archerfish.errors import InvalidParameter, PromptTooLong
from archerfish.request import Best, SamplingParams, Speculation
from archerfish.tokenizer import Tokenizer
from tests.checkpoints import CONFIG, write_tokenizer

VOCABULARY = 290  # The tokenizer has 300.
PARAMS = SamplingParams()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return Tokenizer.load(directory)


@pytest.fixture
def processor(tokenizer: Tokenizer) -> InputProcessor:
    return InputProcessor(tokenizer, VOCABULARY, 16, lambda: 1.0)


def test_a_text_with_a_token_that_the_model_lacks_is_refused_by_name(
    processor: InputProcessor, tokenizer: Tokenizer
) -> None:
    unknown = next(token for token in range(VOCABULARY, 300) if len(tokenizer.encode(tokenizer.token_text(token))) == 1)
    text = tokenizer.token_text(unknown)
    with pytest.raises(InvalidParameter) as caught:
        processor.request(text, PARAMS)
    assert all(part in str(caught.value) for part in (str(unknown), repr(text), "290"))
    with pytest.raises(InvalidParameter, match="290"):
        processor.request([5, unknown], PARAMS)


def test_methods_that_the_engine_lacks_are_refused_by_those_it_has(tokenizer: Tokenizer) -> None:
    own = InputProcessor(tokenizer, VOCABULARY, 16, lambda: 1.0, None, ("off", "auto", "medusa"))
    for processor, lacking, known in (
        (own, "eagle", "this engine has off, auto, medusa;"),
        (InputProcessor(tokenizer, VOCABULARY, 16, lambda: 1.0), "medusa", "this engine has off, auto;"),
    ):
        with pytest.raises(InvalidParameter, match=known):
            processor.request([5], SamplingParams(speculation=Speculation(method=lacking)))
    asked = SamplingParams(speculation=Speculation(method="medusa"))
    assert own.request([5], asked).params == asked


@pytest.mark.parametrize("token", [-1, 300, 10**9, 2.0, True, "a", None])
def test_ids_that_are_no_tokens_are_refused(processor: InputProcessor, token: object) -> None:
    for one in (processor, InputProcessor(None, VOCABULARY, 16, lambda: 1.0)):
        with pytest.raises(InvalidParameter, match="prompt"):
            one.request([5, token], PARAMS)  # type: ignore[list-item]


def test_prompts_without_tokens_and_without_room_for_an_answer_are_refused(processor: InputProcessor) -> None:
    for empty in ("", [], ()):
        with pytest.raises(InvalidParameter, match="at least one token"):
            processor.request(empty, PARAMS)
    assert len(processor.request([5] * 15, PARAMS).prompt_token_ids) == 15
    with pytest.raises(PromptTooLong) as caught:
        processor.request([5] * 16, PARAMS)
    assert (caught.value.length, caught.value.limit) == (16, 16)
    with pytest.raises(PromptTooLong):
        processor.request("z" * 40, PARAMS)


def test_an_end_token_that_the_model_lacks_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"eos_token_id": [1, 300, 4000]}))
    config = EngineConfig(model=str(tmp_path), load_format="dummy", device="cpu", threads=1, max_model_len=64)
    assembly = build(config)
    assert assembly.engine.scheduler.limits.eos_token_ids == (1,)
    assert assembly.config.max_model_len == 64
    # Barring it until min_tokens are written must not end the engine.
    assembly.engine.add(assembly.processor.request([5, 6], SamplingParams(min_tokens=2, max_tokens=3)))
    while assembly.engine.has_work:
        assembly.engine.step()
    assert assembly.engine.stopped is None
    with pytest.raises(PromptTooLong):
        assembly.processor.request([5] * 64, PARAMS)
    assembly.engine.close()


def test_bad_words_are_barred_at_the_start_of_a_text_and_behind_a_space(tokenizer: Tokenizer) -> None:
    processor = InputProcessor(tokenizer, 300, 16, lambda: 1.0)
    asked = SamplingParams(bad_words=["fox", " dog"], bad_words_token_ids=[[7, 8]])
    params = processor.request([5], asked).params
    texts = ("fox", " fox", " dog")
    wanted = ((7, 8), *(tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts))
    assert set(params.bad_words_token_ids) == set(wanted) and params.bad_words == ()
    assert asked.bad_words == ("fox", " dog") and asked.bad_words_token_ids == ((7, 8),)
    with pytest.raises(InvalidParameter, match="bad_words_token_ids"):
        InputProcessor(None, 300, 16, lambda: 1.0).request([5], SamplingParams(bad_words=["fox"]))
    with pytest.raises(InvalidParameter, match="bad_words_token_ids = 300"):
        processor.request([5], SamplingParams(bad_words_token_ids=[[300]]))


def test_the_best_of_several_answers_is_found_by_log_probabilities(processor: InputProcessor) -> None:
    request = processor.request([5], SamplingParams(n=2, best_of=5))
    assert (request.params.n, request.params.best_of, request.params.logprobs) == (5, None, 0)
    assert request.best == Best(2, shows_logprobs=False)
    request = processor.request([5], SamplingParams(best_of=3, logprobs=4))
    assert request.params.logprobs == 4 and request.best == Best(1, shows_logprobs=True)
    assert processor.request([5], SamplingParams(n=3, best_of=3)).best is None


def test_an_answer_longer_than_the_context_is_refused_with_the_limit(tokenizer: Tokenizer) -> None:
    processor = InputProcessor(tokenizer, VOCABULARY, 64, lambda: 1.0)
    with pytest.raises(InvalidParameter, match=r"max_tokens = 65 .* 64 tokens \(--max-model-len\)") as caught:
        processor.request([5], SamplingParams(max_tokens=65))
    assert caught.value.name == "max_tokens"
    for max_tokens in (1, 64, None):
        assert processor.request([5], SamplingParams(max_tokens=max_tokens)).params.max_tokens == max_tokens


def test_the_default_length_fits_every_context(tokenizer: Tokenizer) -> None:
    assert InputProcessor(tokenizer, VOCABULARY, 8, lambda: 1.0).request([5], SamplingParams()).params.max_tokens == 16


@pytest.mark.parametrize(
    ("most", "max_tokens", "kept"), [(None, 4, 12), (5, 4, 5), (100, 4, 12), (-1, 4, 12), (-1, 10, 6), (-1, 16, 1)]
)
def test_the_end_of_a_prompt_is_kept(processor: InputProcessor, most: int | None, max_tokens: int, kept: int) -> None:
    prompt = list(range(12))
    request = processor.request(prompt, SamplingParams(truncate_prompt_tokens=most, max_tokens=max_tokens))
    assert list(request.prompt_token_ids) == prompt[-kept:]


def test_a_prompt_that_is_too_long_fits_once_it_is_cut(processor: InputProcessor) -> None:
    with pytest.raises(PromptTooLong):
        processor.request([5] * 40, PARAMS)
    assert (
        len(processor.request([5] * 40, SamplingParams(truncate_prompt_tokens=-1, max_tokens=3)).prompt_token_ids) == 13
    )


def test_what_is_changed_later_does_not_reach_a_request(processor: InputProcessor) -> None:
    params = SamplingParams(max_tokens=4)
    request = processor.request([5], params)
    params.max_tokens = 9
    assert request.params.max_tokens == 4


def test_variables_of_a_chat_template_may_have_any_name(processor: InputProcessor) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    assert processor.chat_text(messages, self=1, clock=2) == processor.chat_text(messages)
