"""Arguments and attributes of vLLM's classes: they work, or an error says what takes their place."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archerfish import LLM, AsyncEngineArgs, AsyncLLM, SamplingParams
from archerfish.errors import InvalidParameter
from tests.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
TEXT = "The quick brown fox "
SETTINGS: dict[str, Any] = {"threads": 1, "max_num_seqs": 8}
# The methods, properties and attributes that users call, of vLLM 0.11 and its successors.
OF_LLM = (
    "apply_model beam_search chat classify collective_rpc embed encode enqueue enqueue_chat generate "
    "get_default_sampling_params get_metrics get_tokenizer get_world_size init_weight_transfer_engine input_processor "
    "llm_engine model_config preprocess_chat processor renderer reset_mm_cache reset_prefix_cache reward runner_type "
    "score set_tokenizer sleep start_profile stop_profile supported_tasks update_weights wait_for_completion wake_up"
).split()
OF_ASYNC_LLM = (
    "abort add_lora add_request check_health collective_rpc dead_error do_log_stats encode engine_core errored "
    "from_engine_args from_vllm_config generate get_decoding_config get_input_preprocessor get_lora_config "
    "get_model_config get_parallel_config get_scheduler_config get_supported_tasks get_tokenizer get_vllm_config "
    "init_weight_transfer_engine input_processor is_paused is_running is_sleeping is_stopped is_tracing_enabled "
    "list_loras model_config pause_generation pin_lora processor remove_lora reset_encoder_cache reset_mm_cache "
    "reset_prefix_cache resume_generation scale_elastic_ep shutdown sleep start_profile stop_profile update_weights "
    "vllm_config wait_for_requests_to_drain wake_up"
).split()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), **SETTINGS) as llm:
        yield llm


def assert_named(made: object, attributes: list[str]) -> None:
    """Each is there, or an error names it with what to use."""
    name = type(made).__name__
    for attribute in attributes:
        try:
            getattr(made, attribute)
        except AttributeError as error:
            assert str(error).startswith(f"{name}.{attribute} is not there: "), attribute
    with pytest.raises(AttributeError, match=f"{name} has no attribute 'nonsense'"):
        _ = made.nonsense  # type: ignore[attr-defined]


def test_what_is_not_there_is_named_with_what_takes_its_place(llm: LLM) -> None:
    assert_named(llm, OF_LLM)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model="perch"))
    assert_named(engine, OF_ASYNC_LLM)
    engine.shutdown()


def test_token_ids_may_have_an_argument_of_their_own(llm: LLM, directory: Path) -> None:
    ids = llm.get_tokenizer().encode(TEXT)
    [expected] = llm.generate(TEXT, GREEDY)
    for given in (ids, [ids], [tuple(ids)]):
        [output] = llm.generate(prompt_token_ids=given, sampling_params=GREEDY)
        assert output.outputs[0].token_ids == expected.outputs[0].token_ids and output.prompt is None
    assert len(llm.generate(None, GREEDY, prompt_token_ids=[ids, ids[:2]])) == 2
    with pytest.raises(InvalidParameter, match=r"prompt_token_ids .*prompts is the same"):
        llm.generate(TEXT, GREEDY, prompt_token_ids=ids)
    with pytest.raises(InvalidParameter, match="prompts = None"):
        llm.generate(sampling_params=GREEDY)

    async def main() -> list[int]:
        async with AsyncLLM.from_engine_args(AsyncEngineArgs(str(directory), **SETTINGS)) as engine:
            outputs = [output async for output in engine.generate(prompt_token_ids=ids, sampling_params=GREEDY)]
            return outputs[-1].outputs[0].token_ids

    assert asyncio.run(main()) == expected.outputs[0].token_ids


def test_prompts_may_have_keys_that_say_nothing(llm: LLM) -> None:
    [expected] = llm.generate(TEXT, GREEDY)
    prompt: Any = {"prompt": TEXT, "prompt_token_ids": None, "multi_modal_data": None}
    [output] = llm.generate(prompt, GREEDY)
    assert output.outputs[0].token_ids == expected.outputs[0].token_ids
    with pytest.raises(InvalidParameter, match="images and other media are not read"):
        llm.generate({**prompt, "multi_modal_data": {"image": 1}}, GREEDY)


def test_a_chat_with_an_image_is_refused_as_over_http(llm: LLM) -> None:
    picture = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(InvalidParameter, match="this model reads text only, and this part is of type image_url"):
        llm.chat([{"role": "user", "content": [{"type": "text", "text": "What is it?"}, picture]}], GREEDY)


def test_the_tokenizer_is_one_that_can_be_changed(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(5)
    assert llm.get_tokenizer().pad_token_id == 5


def test_the_async_engine_lays_out_chats_by_the_template_that_was_given(directory: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}")
    chat = [{"role": "user", "content": "Hello"}]

    async def main(chat_template: str, *, early: bool) -> Any:
        args = AsyncEngineArgs(str(directory), chat_template=chat_template, **SETTINGS)
        engine = AsyncLLM.from_engine_args(args)
        if early:
            tokenizer = engine.get_tokenizer()  # Read here; else with the engine.
        async with engine:
            tokenizer = engine.get_tokenizer()
            return tokenizer.apply_chat_template(chat, tokenize=False)

    for given in (str(template), template.read_text()):
        for early in (True, False):
            assert asyncio.run(main(given, early=early)) == "[user] Hello\n"
