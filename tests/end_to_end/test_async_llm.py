"""The engine for an event loop: what a caller sees of requests, of their ends, and of an engine that ends."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from archerfish import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    PoolingParams,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from archerfish.errors import ConfigError, EngineStopped, InvalidParameter, PromptTooLong, RequestError, UserError

ARGS: dict[str, Any] = {"model": "perch", "threads": 1, "max_num_seqs": 8, "max_model_len": 256}
GREEDY = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
PROMPT = "Once upon a time"


Run = Callable[[Callable[[AsyncLLM], Awaitable[None]]], None]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run the work of a test with the engine that all of them share, in its event loop."""
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**ARGS))

    async def check(work: Callable[[AsyncLLM], Awaitable[None]]) -> None:
        await work(engine)
        assert engine._engine.num_open == 0 and not engine._open, "a request was left open"

    with asyncio.Runner() as runner:
        runner.run(engine.__aenter__())
        yield lambda work: runner.run(check(work))
        runner.run(engine.__aexit__())


async def collect(outputs: AsyncIterator[Any]) -> list[Any]:
    return [output async for output in outputs]


@pytest.fixture(scope="module")
def expected() -> RequestOutput:
    with LLM(**ARGS) as llm:
        [output] = llm.generate(PROMPT, GREEDY, progress=False)
    return output


def test_outputs_are_all_so_far_or_what_was_added_or_the_last(run: Run, expected: RequestOutput) -> None:
    answer = expected.outputs[0]

    async def work(engine: AsyncLLM) -> None:
        for logprobs in (None, 2):
            found = {}
            for kind in RequestOutputKind:
                params = SamplingParams(
                    temperature=0, max_tokens=100, ignore_eos=True, output_kind=kind, logprobs=logprobs
                )
                found[kind] = await collect(engine.generate(PROMPT, params, request_id=f"{kind}"))
                assert [output.finished for output in found[kind]] == [False] * (len(found[kind]) - 1) + [True]
                assert {output.request_id for output in found[kind]} == {str(kind)}
            cumulative = [output.outputs[0] for output in found[RequestOutputKind.CUMULATIVE]]
            delta = [output.outputs[0] for output in found[RequestOutputKind.DELTA]]
            [final] = found[RequestOutputKind.FINAL_ONLY]
            for last in (final.outputs[0], cumulative[-1]):
                assert (last.text, last.token_ids) == (answer.text, answer.token_ids)
                assert (last.finish_reason, last.stop_reason) == ("length", None)
            assert "".join(one.text for one in delta) == answer.text
            assert [token for one in delta for token in one.token_ids] == answer.token_ids
            assert delta[-1].finish_reason == "length" and len(delta) > 1
            for before, after in pairwise(cumulative):
                assert len(before.token_ids) < len(after.token_ids) and after.text.startswith(before.text)
            if logprobs is not None:
                assert [entry for one in delta for entry in one.logprobs] == final.outputs[0].logprobs
                assert delta[-1].cumulative_logprob == final.outputs[0].cumulative_logprob
                assert [len(one.logprobs) for one in cumulative] == [len(one.token_ids) for one in cumulative]

    run(work)


def test_many_requests_run_at_once_each_with_its_own_parameters(run: Run, expected: RequestOutput) -> None:
    async def work(engine: AsyncLLM) -> None:
        choice = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
        several = SamplingParams(n=3, seed=1, max_tokens=4, ignore_eos=True)
        best = SamplingParams(best_of=3, seed=1, max_tokens=4, ignore_eos=True, logprobs=0)
        tasks = [
            collect(engine.generate(PROMPT, params))
            for params in (GREEDY, choice, several, best, None, SamplingParams(max_tokens=3, detokenize=False))
        ]
        greedy, chosen, three, one, default, tokens = await asyncio.gather(*tasks)
        assert greedy[-1].outputs[0].text == expected.outputs[0].text
        assert chosen[-1].outputs[0].text in ("yes", "no")
        assert [len(answer.token_ids) for answer in three[-1].outputs] == [4, 4, 4]
        # Compared when all are there, so there is one output.
        assert len(one) == 1 and len(one[0].outputs) == 1
        assert any(answer.token_ids == one[0].outputs[0].token_ids for answer in three[-1].outputs)
        assert default[-1].finished and tokens[-1].outputs[0].text == "" and len(tokens[-1].outputs[0].token_ids) == 3

    run(work)


def test_an_aborted_request_ends_with_what_it_has(run: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        outputs = []
        async for output in engine.generate(PROMPT, LONG, request_id="mine"):
            outputs.append(output)
            if len(outputs) == 2:
                await engine.abort(["mine", "unknown"])
        last = outputs[-1]
        assert last.finished and last.outputs[0].finish_reason == "abort"
        assert len(last.outputs[0].token_ids) >= len(outputs[1].outputs[0].token_ids)
        # The name is free again, and may be used twice.
        both = [collect(engine.generate(PROMPT, GREEDY, request_id="mine")) for _ in range(2)]
        assert all(len(found[-1].outputs[0].token_ids) == GREEDY.max_tokens for found in await asyncio.gather(*both))

    run(work)


@pytest.mark.parametrize("leave", ["aclose", "cancel"])
def test_leaving_the_outputs_cancels_the_request(run: Run, leave: str) -> None:
    async def work(engine: AsyncLLM) -> None:
        outputs = engine.generate(PROMPT, LONG)
        if leave == "aclose":
            await anext(outputs)
            await outputs.aclose()
        else:
            has_begun = asyncio.Event()

            async def read() -> None:
                async for _ in outputs:
                    has_begun.set()

            task = asyncio.create_task(read())
            await has_begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert engine._engine.num_open == 0
        assert len((await collect(engine.generate(PROMPT, GREEDY)))[-1].outputs[0].token_ids) == GREEDY.max_tokens

    run(work)


def test_prompts_become_vectors(run: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        [states] = await collect(engine.encode(PROMPT, pooling_task="token_embed"))
        [mean] = await collect(engine.encode(PROMPT, PoolingParams(task="embed"), "id"))
        [unit] = await collect(engine.encode(PROMPT, PoolingParams(task="embed", use_activation=True)))
        assert len(states.outputs.data) == len(states.prompt_token_ids) and mean.request_id == "id"
        assert (states.outputs.data.mean(0) - mean.outputs.data).abs().max() < 1e-5
        assert float(unit.outputs.data.norm()) == pytest.approx(1.0)

    run(work)


def test_what_is_wrong_with_a_request_is_raised_and_concerns_it_alone(run: Run) -> None:
    impossible = SamplingParams(allowed_token_ids=[1], min_tokens=2, max_tokens=4)
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ("", {}, InvalidParameter, "prompt"),
        ([5] * 300, {}, PromptTooLong, "256"),
        ({"text": "x"}, {}, InvalidParameter, "prompt"),
        (PROMPT, {"sampling_params": {"temperature": 0}}, InvalidParameter, "params"),
        (PROMPT, {"sampling_params": GREEDY, "params": GREEDY}, InvalidParameter, "sampling_params"),
        (PROMPT, {"sampling_params": impossible}, RequestError, "forbid every one"),
        (PROMPT, {"request_id": 7}, InvalidParameter, "request_id"),
        (PROMPT, {"priority": 2**64}, InvalidParameter, "priority"),
        (PROMPT, {"lora_request": "x"}, InvalidParameter, "merge the adapter"),
        (PROMPT, {"nonsense": "x"}, TypeError, "nonsense"),
    ]

    async def work(engine: AsyncLLM) -> None:
        for prompt, arguments, error, says in cases:
            with pytest.raises(error, match=says):
                await collect(engine.generate(prompt, **arguments))
        with pytest.raises(InvalidParameter, match="classification head"):
            await collect(engine.encode(PROMPT, pooling_task="classify"))
        assert len((await collect(engine.generate(PROMPT, GREEDY)))[-1].outputs[0].token_ids) == GREEDY.max_tokens

    run(work)


def test_a_model_that_is_not_there_is_named_by_the_first_call(tmp_path: Path) -> None:
    async def main() -> None:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(tmp_path / "nothing")))
        for call in (engine.check_health(), collect(engine.generate(PROMPT, GREEDY))):
            with pytest.raises(UserError, match="nothing"):
                await call
        assert engine.errored and engine.is_stopped and "nothing" in str(engine.dead_error)
        engine.shutdown()

    asyncio.run(main())


def test_settings_that_cannot_work_are_refused_before_anything_is_started() -> None:
    with pytest.raises(ConfigError, match="one device"):
        AsyncLLM.from_engine_args(AsyncEngineArgs(model="perch", tensor_parallel_size=2))
    with pytest.raises(InvalidParameter, match="engine_args"):
        AsyncLLM.from_engine_args({"model": "perch"})  # type: ignore[arg-type]


def test_a_dead_engine_is_started_again_and_its_requests_fail(run: Run) -> None:
    async def work(engine: AsyncLLM) -> None:
        outputs = engine.generate(PROMPT, LONG)
        await anext(outputs)
        process = engine._engine._process
        assert process is not None
        process.kill()
        with pytest.raises(EngineStopped, match="SIGKILL"):
            await collect(outputs)
        assert len((await collect(engine.generate(PROMPT, GREEDY)))[-1].outputs[0].token_ids) == GREEDY.max_tokens
        await engine.check_health()

    run(work)


def test_it_is_made_outside_of_an_event_loop_and_belongs_to_the_first_one() -> None:
    engine = AsyncLLMEngine.from_engine_args(AsyncEngineArgs(**ARGS))
    token_ids = engine.get_tokenizer().encode(PROMPT)

    async def write() -> list[int]:
        tokenizer = await engine.get_tokenizer()
        output = (await collect(engine.generate({"prompt_token_ids": token_ids}, GREEDY, "1")))[-1]
        assert tokenizer.decode(output.outputs[0].token_ids) == output.outputs[0].text
        return output.prompt_token_ids

    assert asyncio.run(write()) == token_ids
    process_id = engine._engine.process_id
    assert process_id is not None and engine.is_running
    with pytest.raises(EngineStopped, match="another event loop"):
        asyncio.run(write())
    directory = engine._engine._directory.path
    engine.shutdown()
    engine.shutdown()  # A second time nothing happens.
    assert engine.is_stopped and not engine.errored and not directory.exists()
    assert not _is_running(process_id)


def test_after_a_shutdown_calls_say_so() -> None:
    async def main() -> None:
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**ARGS))
        outputs = engine.generate(PROMPT, LONG)
        await anext(outputs)
        engine.shutdown()
        with pytest.raises(EngineStopped, match="shut down"):
            await collect(outputs)
        with pytest.raises(EngineStopped, match="shut down"):
            await collect(engine.generate(PROMPT, GREEDY))
        async with AsyncLLM.from_engine_args(AsyncEngineArgs(**ARGS)) as other:
            other.shutdown()

    asyncio.run(main())


def test_what_vllm_has_and_this_has_not_is_named_with_what_takes_its_place() -> None:
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**ARGS))
    with pytest.raises(AttributeError, match="shutdown"):
        _ = engine.sleep
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = engine.nonsense
    engine.shutdown()


def _is_running(process_id: int) -> bool:
    """Whether a process does anything; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False
