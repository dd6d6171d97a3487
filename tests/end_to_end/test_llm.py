"""The offline face as a user meets it: prompts in, outputs out, and one answer whatever runs beside it."""

import signal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archerfish import LLM, BeamSearchParams, PoolingParams, RequestOutput, SamplingParams
from archerfish.errors import (
    ConfigError,
    EngineStopped,
    InvalidParameter,
    PromptTooLong,
    RequestError,
    StepFailed,
    TokenizerError,
    UnsupportedModel,
)
from tests.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
TEXT = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), threads=1, max_num_seqs=8, check_invariants=True) as llm:
        yield llm
        assert llm.assembly.engine.scheduler.tables.pool.num_in_use == 0, "a request left blocks behind"


def make(directory: Path, **settings: Any) -> LLM:
    return LLM(str(directory), threads=1, **{"max_num_seqs": 8, "check_invariants": True, **settings})


def tokens(output: RequestOutput) -> list[list[int]]:
    return [answer.token_ids for answer in output.outputs]


def test_outputs_have_the_shape_that_vllm_users_know(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    output = llm.generate(TEXT, params)[0]
    answer = output.outputs[0]
    assert output.prompt == TEXT and output.finished
    assert len(answer.token_ids) == 5 and answer.finish_reason == "length" and answer.stop_reason is None
    assert isinstance(answer.text, str)
    assert answer.logprobs is not None and len(answer.logprobs) == 5
    for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        assert entry[token].rank == 1 and len(entry) == 3
        assert isinstance(entry[token].decoded_token, str)
    assert answer.cumulative_logprob == pytest.approx(
        sum(entry[token].logprob for token, entry in zip(answer.token_ids, answer.logprobs, strict=True))
    )
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids) and output.prompt_logprobs[0] is None
    assert all(entry is not None and len(entry) in (2, 3) for entry in output.prompt_logprobs[1:])
    timing = output.metrics
    assert timing.ttft is not None and timing.tpot is not None and timing.total is not None
    assert 0 <= timing.ttft <= timing.total and timing.num_generated_tokens == 5


def test_text_and_token_ids_are_the_same_prompt(llm: LLM) -> None:
    by_text = llm.generate(TEXT, GREEDY)[0]
    by_ids = llm.generate(by_text.prompt_token_ids, GREEDY)[0]
    assert tokens(by_text) == tokens(by_ids) and by_ids.prompt is None
    assert by_text.outputs[0].text == by_ids.outputs[0].text
    both = llm.generate([TEXT, by_text.prompt_token_ids], [GREEDY, GREEDY])
    assert [tokens(output) for output in both] == [tokens(by_text)] * 2


def test_seeded_answers_do_not_depend_on_the_company(directory: Path) -> None:
    """Alone, in a batch, chunked, with cold and warm cache, preempted: the same tokens."""
    prompts = [TEXT * (1 + i % 3) + str(i) for i in range(8)]
    params = [
        SamplingParams(temperature=0.5 + i / 8, top_k=i * 10, top_p=1 - i / 20, seed=i, max_tokens=20, ignore_eos=True)
        for i in range(8)
    ]
    alone = [tokens(make(directory).generate(p, s)[0]) for p, s in zip(prompts, params, strict=True)]
    together = make(directory)
    assert [tokens(output) for output in together.generate(prompts, params)] == alone
    assert [tokens(output) for output in together.generate(prompts[::-1], params[::-1])] == alone[::-1]
    chunked = make(directory, max_num_batched_tokens=13, block_size=8, enable_prefix_caching=False)
    assert [tokens(output) for output in chunked.generate(prompts, params)] == alone
    block_bytes = 2 * 2 * 16 * 2 * 8 * 4
    slow = {"method": "off"}  # With guesses that stand, answers may end before anyone must make way.
    crowded = make(
        directory, max_num_batched_tokens=50, kv_cache_memory_bytes=18 * block_bytes, speculative_config=slow
    )
    assert [tokens(output) for output in crowded.generate(prompts, params)] == alone
    assert crowded.assembly.engine.scheduler.num_preemptions > 0


def test_unseeded_requests_differ_from_each_other_but_not_between_runs(directory: Path) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True)
    first = [tokens(output) for output in make(directory).generate([TEXT] * 4, params)]
    assert len({str(answer) for answer in first}) == 4
    assert [tokens(output) for output in make(directory).generate([TEXT] * 4, params)] == first
    assert [tokens(output) for output in make(directory, seed=1).generate([TEXT] * 4, params)] != first


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("prompt_length", [15, 16, 17, 40])
def test_several_answers_share_the_prompt(directory: Path, prompt_length: int, prefix_caching: bool) -> None:
    """Each of n answers equals what a request of its own with that seed would give."""
    from archerfish.scheduling.sequence import sequence_seed

    llm = make(directory, enable_prefix_caching=prefix_caching)
    prompt = [3 + i % 200 for i in range(prompt_length)]
    sampled = {"temperature": 1.0, "max_tokens": 20, "ignore_eos": True}
    output = llm.generate(prompt, SamplingParams(n=4, seed=7, **sampled))[0]
    assert len({str(answer) for answer in tokens(output)}) == 4
    for index, answer in enumerate(tokens(output)):
        single = llm.generate(prompt, SamplingParams(seed=sequence_seed(7, index), **sampled))[0]
        assert tokens(single) == [answer]
    assert llm.assembly.engine.scheduler.tables.pool.num_in_use == 0


def test_more_answers_than_rows_are_all_written(directory: Path) -> None:
    llm = make(directory, max_num_seqs=3)
    output = llm.generate(TEXT, SamplingParams(n=10, seed=0, temperature=1.0, max_tokens=6, ignore_eos=True))[0]
    assert [len(answer) for answer in tokens(output)] == [6] * 10


def test_a_stop_text_ends_the_answer_before_it(llm: LLM) -> None:
    free = llm.generate(TEXT, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))[0].outputs[0]
    stop = free.text[7:10]
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, stop=stop)
    answer = llm.generate(TEXT, params)[0].outputs[0]
    assert answer.text == free.text[: free.text.index(stop)]
    assert answer.finish_reason == "stop" and answer.stop_reason == stop
    assert free.token_ids[: len(answer.token_ids)] == answer.token_ids
    streamed = "".join(piece.text for piece in llm.stream(TEXT, params))
    assert streamed == answer.text


def test_stop_tokens_min_tokens_and_the_end_token(llm: LLM) -> None:
    free = llm.generate(TEXT, SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True))[0].outputs[0].token_ids
    stop_token = free[2]
    params = {"temperature": 0.0, "max_tokens": 10, "stop_token_ids": [stop_token], "ignore_eos": True}
    stopped = llm.generate(TEXT, SamplingParams(**params))[0].outputs[0]
    first = free.index(stop_token)
    assert stopped.token_ids == free[: first + 1] and stopped.stop_reason == stop_token
    later = llm.generate(TEXT, SamplingParams(min_tokens=6, **params))[0].outputs[0]
    assert stop_token not in later.token_ids[:6] and len(later.token_ids) >= 6
    only_eos = SamplingParams(temperature=0.0, max_tokens=10, allowed_token_ids=[1])
    ended = llm.generate(TEXT, only_eos)[0].outputs[0]
    assert ended.token_ids == [1] and ended.finish_reason == "stop" and ended.text == ""


def num_computed(llm: LLM) -> int:
    """Tokens, but for guesses that fell."""
    counts = llm.assembly.engine.counts
    return counts.num_computed_tokens - counts.num_draft_tokens + counts.num_accepted_tokens


def test_a_prompt_seen_before_is_not_computed_again(llm: LLM) -> None:
    cold = llm.generate(TEXT * 4, GREEDY)[0]
    computed = num_computed(llm)
    warm = llm.generate(TEXT * 4, GREEDY)[0]
    length = len(cold.prompt_token_ids)
    assert cold.num_cached_tokens == 0 and warm.num_cached_tokens == (length - 1) // 16 * 16
    assert num_computed(llm) - computed == length - warm.num_cached_tokens + 11
    assert tokens(warm) == tokens(cold)
    salted = llm.generate(TEXT * 4, GREEDY, cache_salt="another tenant")[0]
    assert salted.num_cached_tokens == 0 and tokens(salted) == tokens(cold)


def test_streams_give_what_generate_gives_even_when_interleaved(llm: LLM) -> None:
    expected = [llm.generate(prompt, GREEDY)[0].outputs[0] for prompt in (TEXT, "你好，世界 " * 3)]
    streams = [llm.stream(TEXT, GREEDY), llm.stream("你好，世界 " * 3, GREEDY)]
    pieces: list[list[Any]] = [[], []]
    for _ in range(20):
        for stream, taken in zip(streams, pieces, strict=True):
            taken.extend(islice(stream, 1))
    for taken, answer in zip(pieces, expected, strict=True):
        assert "".join(piece.text for piece in taken) == answer.text
        assert [token for piece in taken for token in piece.token_ids] == answer.token_ids
        assert taken[-1].finish_reason == "length"


def test_leaving_a_stream_frees_its_blocks(llm: LLM) -> None:
    stream = llm.stream(TEXT, SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    next(stream)
    assert llm.assembly.engine.scheduler.tables.pool.num_in_use > 0
    stream.close()  # type: ignore[attr-defined]
    assert llm.assembly.engine.scheduler.tables.pool.num_in_use == 0
    assert not llm.assembly.engine.has_work


def test_chat_uses_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    output = llm.chat(messages, GREEDY)[0]
    assert output.prompt == "<s>user: Hello</s><s>"
    assert output.prompt_token_ids[0] == 0 and output.prompt_token_ids.count(0) == 2
    assert [tokens(one) for one in llm.chat([messages, messages], GREEDY)] == [tokens(output)] * 2
    assert "".join(piece.text for piece in llm.stream_chat(messages, GREEDY)) == output.outputs[0].text


def test_answers_fill_the_context_and_no_more(directory: Path) -> None:
    llm = make(directory, max_model_len=40)
    output = llm.generate([5] * 30, SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))[0]
    assert len(output.outputs[0].token_ids) == 10 and output.outputs[0].finish_reason == "length"
    longest = llm.generate([5] * 39, GREEDY)[0]
    assert len(longest.outputs[0].token_ids) == 1


@pytest.mark.parametrize("batching", ["static", "dynamic"])
def test_other_batching_policies_give_the_same_tokens(directory: Path, batching: str, llm: LLM) -> None:
    prompts = [TEXT * (1 + i % 3) + str(i) for i in range(7)]
    expected = [tokens(output) for output in llm.generate(prompts, GREEDY)]
    other = make(directory, batching=batching, max_num_seqs=3)
    assert [tokens(output) for output in other.generate(prompts, GREEDY)] == expected


def test_bad_requests_are_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(InvalidParameter, match="prompt"):
        llm.generate("", GREEDY)
    with pytest.raises(InvalidParameter, match="prompt"):
        llm.generate([[]], GREEDY)
    with pytest.raises(InvalidParameter, match="300"):
        llm.generate([[5, 300]], GREEDY)
    with pytest.raises(InvalidParameter, match="-1"):
        llm.generate([[5, -1]], GREEDY)
    with pytest.raises(PromptTooLong, match="256"):
        llm.generate([5] * 256, GREEDY)
    with pytest.raises(InvalidParameter, match="logit_bias"):
        llm.generate(TEXT, SamplingParams(logit_bias={300: 1.0}))
    with pytest.raises(InvalidParameter, match="params"):
        llm.generate([TEXT, TEXT], [GREEDY])
    with pytest.raises(RequestError):
        llm.generate("\ud800", GREEDY)
    # One bad prompt among good ones: nothing of the call is left running.
    with pytest.raises(PromptTooLong):
        llm.generate([TEXT, [5] * 256], GREEDY)
    assert not llm.assembly.engine.has_work
    assert len(llm.generate(TEXT, GREEDY)[0].outputs[0].token_ids) == 12


def test_a_request_that_cannot_go_on_fails_alone(llm: LLM) -> None:
    """Every token is forbidden for one request; its neighbour does not notice."""
    impossible = SamplingParams(temperature=0.0, allowed_token_ids=[1], min_tokens=2, max_tokens=4)
    good, bad = llm.generate([TEXT, TEXT], [GREEDY, impossible])
    assert bad.outputs[0].finish_reason == "error" and "forbid" in str(bad.outputs[0].error)
    assert tokens(good) == tokens(llm.generate(TEXT, GREEDY)[0])


def test_a_failing_step_ends_the_engine_with_its_reason(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("the device fell off")

    monkeypatch.setattr(llm.assembly.engine._executor._model, "run", broken)
    with pytest.raises(StepFailed, match="the device fell off"):
        llm.generate([TEXT, TEXT], GREEDY)
    with pytest.raises(EngineStopped, match="the device fell off"):
        llm.generate(TEXT, GREEDY)


def test_settings_that_do_not_exist_are_named(directory: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_length"):
        LLM(str(directory), max_model_length=3)


def test_prompts_come_in_every_shape_that_means_one_thing(llm: LLM) -> None:
    ids = llm.generate(TEXT, GREEDY)[0].prompt_token_ids
    expected = tokens(llm.generate(TEXT, GREEDY)[0])
    for prompt in (
        {"prompt": TEXT},
        [{"prompt_token_ids": ids}],
        tuple(ids),
        [tuple(ids)],
        np.array(ids),
        [np.array(ids)],
        torch.tensor(ids),
        (text for text in [TEXT]),
    ):
        assert [tokens(output) for output in llm.generate(prompt, GREEDY)] == [expected]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "prompts", [None, 5, b"abc", [None], [5.0], [b"abc"], {"text": "hi"}, {"prompt": "a", "seed": 1}, [["a"]], [[True]]]
)
def test_what_is_no_prompt_is_refused_by_name(llm: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidParameter, match="prompt"):
        llm.generate(prompts, GREEDY)
    assert not llm.assembly.engine.has_work


def test_other_arguments_of_the_wrong_kind_are_refused_by_name(llm: LLM) -> None:
    for bad, named in (
        ({"params": {"temperature": 0}}, "params"),
        ({"priority": ["x"]}, "priority"),
        ({"cache_salt": None}, "cache_salt"),
        ({"request_class": "urgent"}, "online, batch"),
    ):
        with pytest.raises(InvalidParameter, match=named):
            llm.generate([TEXT], **{"params": GREEDY, **bad})
    for messages in ({"role": "user", "content": "hi"}, "hi", None):
        with pytest.raises(InvalidParameter, match="messages"):
            llm.chat(messages, GREEDY)  # type: ignore[arg-type]
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(InvalidParameter, match="image_url"):
        llm.chat([{"role": "user", "content": [picture]}], GREEDY)
    with pytest.raises(PromptTooLong, match="prompt 2: "):
        llm.generate([TEXT, [5] * 300], GREEDY)
    with pytest.raises(PromptTooLong) as caught:
        llm.generate([5] * 300, GREEDY)
    assert "--max-model-len" not in str(caught.value), "the model knows no more than 256 positions"
    assert not llm.assembly.engine.has_work


def test_class_priority_and_salt_reach_every_call(llm: LLM) -> None:
    batch = llm.generate([TEXT], GREEDY, request_class="batch", priority=3, cache_salt=["mine"])[0]
    streamed = list(llm.stream(TEXT, GREEDY, request_class="batch", priority=1, cache_salt="mine"))
    assert [token for piece in streamed for token in piece.token_ids] == tokens(batch)[0]
    messages = [{"role": "user", "content": TEXT * 2}]
    assert llm.chat(messages, GREEDY, cache_salt="mine", request_class="batch")[0].num_cached_tokens == 0
    assert llm.chat(messages, GREEDY, cache_salt="mine")[0].num_cached_tokens > 0
    assert llm.chat(messages, GREEDY, cache_salt="yours")[0].num_cached_tokens == 0


def test_an_interrupt_waits_for_the_step_to_be_whole(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tokens(llm.generate(TEXT, GREEDY)[0])
    executor = llm.assembly.engine._executor
    launch = executor.launch
    steps = []

    def interrupted(plan: Any) -> Any:
        steps.append(plan)
        if len(steps) == 3:
            signal.raise_signal(signal.SIGINT)
        return launch(plan)

    monkeypatch.setattr(executor, "launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate([TEXT, TEXT], GREEDY)
    assert len(steps) == 3 and not llm.assembly.engine.has_work
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert tokens(llm.generate(TEXT, GREEDY)[0]) == expected


def test_time_per_token_is_that_of_one_answer(llm: LLM) -> None:
    timing = llm.generate(TEXT, SamplingParams(n=4, seed=1, max_tokens=10, ignore_eos=True))[0].metrics
    assert timing.num_generated_tokens == 40 and timing.tpot is not None
    assert timing.first_token_time is not None and timing.last_token_time is not None
    assert timing.tpot == pytest.approx((timing.last_token_time - timing.first_token_time) / 9)


def test_arguments_have_the_names_of_vllm_too_but_not_both_at_once(llm: LLM) -> None:
    expected = tokens(llm.generate(TEXT, GREEDY)[0])
    assert tokens(llm.generate(TEXT, sampling_params=GREEDY, use_tqdm=False)[0]) == expected
    messages = [{"role": "user", "content": "Hello"}]
    assert tokens(llm.chat(messages, sampling_params=GREEDY)[0]) == tokens(llm.chat(messages, GREEDY, False)[0])
    for call, named in (
        (lambda: llm.generate(TEXT, GREEDY, sampling_params=GREEDY), "sampling_params"),
        (lambda: llm.generate(TEXT, GREEDY, progress=False, use_tqdm=False), "use_tqdm"),
        (lambda: llm.chat(messages, GREEDY, sampling_params=GREEDY), "sampling_params"),
        (lambda: llm.chat(messages, template_variables={}, chat_template_kwargs={}), "chat_template_kwargs"),
        (lambda: llm.chat(messages, chat_template_content_format="openai"), "chat_template_content_format"),
        (lambda: llm.chat(messages, chat_template=5), "chat_template"),  # type: ignore[arg-type]
        (lambda: llm.generate(TEXT, lora_request="x"), "lora_request"),
        (lambda: llm.stream(TEXT, SamplingParams(best_of=2)).__next__(), "best_of"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            call()
        assert caught.value.name == named
    with pytest.raises(TypeError, match=r"generate.* 'nonsense'"):
        llm.generate(TEXT, nonsense=1)
    # What asks for nothing is fine.
    assert tokens(llm.generate(TEXT, GREEDY, lora_request=None, tokenization_kwargs={}, priority=None)[0]) == expected


def test_prompts_may_bring_their_text_and_their_salt(llm: LLM) -> None:
    ids = llm.generate(TEXT, GREEDY)[0].prompt_token_ids
    [output] = llm.generate({"prompt_token_ids": ids, "prompt": "as it was"}, GREEDY)
    assert output.prompt == "as it was" and output.prompt_token_ids == ids and output.num_cached_tokens > 0
    [salted] = llm.generate({"prompt_token_ids": ids, "cache_salt": "other"}, GREEDY)
    assert salted.num_cached_tokens == 0 and tokens(salted) == tokens(output)


def test_the_best_of_several_answers_are_those_with_the_highest_mean_log_probability(llm: LLM) -> None:
    sampled: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_tokens": 6, "ignore_eos": True}
    [all_of_them] = llm.generate(TEXT, SamplingParams(n=6, logprobs=0, **sampled))
    ranked = sorted(all_of_them.outputs, key=lambda one: -(one.cumulative_logprob or 0.0) / len(one.token_ids))
    [best] = llm.generate(TEXT, SamplingParams(n=2, best_of=6, **sampled))
    assert tokens(best) == [one.token_ids for one in ranked[:2]] and [one.index for one in best.outputs] == [0, 1]
    assert best.outputs[0].logprobs is best.outputs[0].cumulative_logprob is None
    assert best.metrics.num_generated_tokens == 36


def test_bad_words_are_not_written(llm: LLM) -> None:
    free = llm.generate(TEXT, SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))[0].outputs[0]
    tokenizer = llm.assembly.processor.tokenizer
    assert tokenizer is not None
    pair = free.token_ids[2:4]
    barred = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, bad_words_token_ids=[pair])
    answer = llm.generate(TEXT, barred)[0].outputs[0].token_ids
    assert answer[:3] == free.token_ids[:3] and answer[3] != pair[1]
    assert all(answer[index : index + 2] != pair for index in range(len(answer)))
    # The prompt may hold what the answer may not, and only what the answer itself completes is forbidden.
    words = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, bad_words=["e", "o"])
    forbidden = {tuple(tokenizer.encode(text, add_special_tokens=False)) for text in ("e", " e", "o", " o")}
    written = llm.generate(TEXT, words)[0].outputs[0].token_ids
    assert not any(
        tuple(written[index : index + len(one)]) == one for one in forbidden for index in range(len(written))
    )


def test_states_of_prompts_do_not_depend_on_how_they_are_computed(directory: Path, llm: LLM) -> None:
    prompts = [TEXT * 3, "fox", TEXT * 2]
    whole = [one.outputs.data for one in llm.encode(prompts, pooling_task="token_embed")]
    again = [one.outputs.data for one in llm.encode(prompts, pooling_task="token_embed")]
    chunked = make(directory, max_num_batched_tokens=13)
    for one, two, three, prompt in zip(
        whole, again, chunked.encode(prompts, pooling_task="token_embed"), prompts, strict=True
    ):
        assert one.shape == (len(three.prompt_token_ids), 32) and three.num_cached_tokens == 0
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, three.outputs.data, atol=1e-5, rtol=1e-4)
        [mean] = llm.embed(prompt)
        torch.testing.assert_close(one.mean(0), torch.tensor(mean.outputs.embedding), atol=1e-5, rtol=1e-4)
    [short] = llm.encode(TEXT * 3, PoolingParams(task="token_embed", truncate_prompt_tokens=5))
    assert short.outputs.data.shape == (5, 32) and len(short.prompt_token_ids) == 5


def test_texts_are_compared_one_with_all_or_pair_by_pair(llm: LLM) -> None:
    first, second = [TEXT, "fox", "dog"], ["fox", TEXT, "dog"]
    vectors = {text: torch.tensor(llm.embed(text)[0].outputs.embedding) for text in first}

    def wanted(pairs: Any) -> Any:
        cosine = torch.nn.functional.cosine_similarity
        return pytest.approx([float(cosine(vectors[a], vectors[b], dim=0)) for a, b in pairs], abs=1e-5)

    assert [one.outputs.score for one in llm.score(first, second)] == wanted(zip(first, second, strict=True))
    assert [one.outputs.score for one in llm.score(TEXT, second)] == wanted((TEXT, one) for one in second)
    for data in ((["a", "b"], ["c"]), ([], ["c"]), (["a"], []), (["a", "b"], ["c", "d", "e"])):
        with pytest.raises(InvalidParameter, match=r"data_[12]"):
            llm.score(*data)


def test_what_no_model_here_can_do_is_refused_with_what_to_use(llm: LLM) -> None:
    with pytest.raises(UnsupportedModel, match=r"no model here has a classification head; .*choice"):
        llm.classify(TEXT)
    for bad in (None, "classify", "reward"):
        with pytest.raises(InvalidParameter, match="pooling_task"):
            llm.encode(TEXT, pooling_task=bad)
    for params, named in (
        ({"task": "rank"}, "task"),
        ({"normalize": 1}, "normalize"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            PoolingParams(**params)  # type: ignore[arg-type]
        assert caught.value.name == named
    with pytest.raises(AttributeError, match="close"):
        _ = llm.sleep
    assert not hasattr(llm, "nonsense")


def test_the_prefix_cache_can_be_forgotten(llm: LLM) -> None:
    llm.generate(TEXT * 3, GREEDY)
    stream = llm.stream("dog" + TEXT * 3, GREEDY)
    next(stream)
    assert not llm.reset_prefix_cache(), "the running request keeps its own"
    stream.close()  # type: ignore[attr-defined]
    assert llm.reset_prefix_cache()
    assert llm.generate(TEXT * 3, GREEDY)[0].num_cached_tokens == 0


def test_without_a_tokenizer_there_is_none_to_get(directory: Path) -> None:
    llm = make(directory, skip_tokenizer_init=True)
    with pytest.raises(TokenizerError, match="no tokenizer was loaded"):
        llm.get_tokenizer()
    [output] = llm.beam_search([[5, 6]], BeamSearchParams(2, 3))
    assert output.sequences[0].text is None and len(output.sequences[0].tokens) == 5
