"""Programs that were written for vLLM: only the line that imports and the name of the model are different.

They follow vLLM's documentation and its examples/ folder, so settings are given that change nothing here.
"""

import asyncio
import json
import re
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

import archerfish

MODEL = "perch"


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    from archerfish import LLM, SamplingParams

    prompts = [
        "Hello, my name is",
        "The president of the United States is",
        "The capital of France is",
        "The future of AI is",
    ]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(model=MODEL)
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt: {prompt!r}, Generated text: {generated_text!r}")

    printed = capsys.readouterr().out.splitlines()
    assert [line.split(", Generated")[0] for line in printed] == [f"Prompt: {prompt!r}" for prompt in prompts]
    assert all(len(output.outputs[0].token_ids) > 0 for output in outputs)


def test_generate_with_settings_and_keywords() -> None:
    from archerfish import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        model=MODEL,
        tokenizer=MODEL,
        tokenizer_mode="auto",
        trust_remote_code=True,
        tensor_parallel_size=1,
        dtype="half",
        quantization=None,
        seed=0,
        gpu_memory_utilization=0.3,
        swap_space=4,
        enforce_eager=False,
        max_model_len=512,
        max_num_seqs=16,
        disable_log_stats=True,
    )
    sampling_params = [
        SamplingParams(temperature=0, max_tokens=8),
        SamplingParams(n=2, best_of=3, seed=7, max_tokens=8, logprobs=1, stop=["\n"], bad_words=["Lily"]),
    ]
    outputs = llm.generate(
        prompts=["Once upon a time", "There was a girl named"], sampling_params=sampling_params, use_tqdm=False
    )
    assert [len(output.outputs) for output in outputs] == [1, 2]
    assert all("Lily" not in one.text for one in outputs[1].outputs)
    assert outputs[1].outputs[0].cumulative_logprob >= outputs[1].outputs[1].cumulative_logprob

    tokenizer = llm.get_tokenizer()
    token_ids = tokenizer.encode("Once upon a time")
    (again,) = llm.generate(TokensPrompt(prompt_token_ids=token_ids), sampling_params=sampling_params[0])
    assert again.outputs[0].text == outputs[0].outputs[0].text
    assert tokenizer.decode(again.outputs[0].token_ids) == again.outputs[0].text


def test_chat() -> None:
    from archerfish import LLM

    llm = LLM(model=MODEL)
    sampling_params = llm.get_default_sampling_params()
    sampling_params.max_tokens = 12
    sampling_params.temperature = 0
    conversation = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {"role": "user", "content": "What is a river?"},
    ]
    outputs = llm.chat(conversation, sampling_params, use_tqdm=False)
    batch = llm.chat([conversation for _ in range(3)], sampling_params=sampling_params, use_tqdm=True)
    assert [output.outputs[0].text for output in batch] == [outputs[0].outputs[0].text] * 3

    # The same conversation laid out by hand.
    tokenizer = llm.get_tokenizer()
    prompt = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert outputs[0].prompt == prompt
    token_ids = tokenizer.apply_chat_template(conversation, add_generation_prompt=True)
    (by_hand,) = llm.generate({"prompt_token_ids": token_ids}, sampling_params, use_tqdm=False)
    assert by_hand.outputs[0].text == outputs[0].outputs[0].text

    chat_template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
    (other,) = llm.chat(conversation, sampling_params, chat_template=chat_template)
    assert other.prompt.startswith("system: You are a helpful assistant\nuser: Hello\n")


def test_a_bar_of_the_callers_own() -> None:
    from archerfish import LLM, SamplingParams

    class Bar:
        def __init__(self, **arguments: Any) -> None:
            self.arguments, self.done, self.is_closed = arguments, 0, False

        def update(self, count: int) -> None:
            self.done += count

        def close(self) -> None:
            self.is_closed = True

    made: list[Bar] = []

    def make(**arguments: Any) -> Bar:
        made.append(Bar(**arguments))
        return made[-1]

    LLM(model=MODEL).generate(["a", "b", "c"], SamplingParams(max_tokens=2), use_tqdm=make)
    assert [(bar.arguments["total"], bar.done, bar.is_closed) for bar in made] == [(3, 3, True)]


def test_embeddings() -> None:
    from archerfish import LLM

    prompts = ["Hello, my name is", "The capital of France is"]
    llm = LLM(model=MODEL, runner="pooling", enforce_eager=True)
    outputs = llm.embed(prompts)
    for prompt, output in zip(prompts, outputs, strict=True):
        embeds = output.outputs.embedding
        embeds_trimmed = (str(embeds[:16])[:-1] + ", ...]") if len(embeds) > 16 else embeds
        print(f"Prompt: {prompt!r} | Embeddings: {embeds_trimmed} (size={len(embeds)})")
        assert len(embeds) == output.outputs.hidden_size == 384

    (pooled,) = llm.encode("Hello, my name is", pooling_task="embed")
    assert pooled.outputs.data.tolist() == pytest.approx(outputs[0].outputs.embedding, abs=1e-2)
    (states,) = llm.encode("Hello, my name is", pooling_task="token_embed")
    assert states.outputs.data.shape == (len(states.prompt_token_ids), 384)


def test_score() -> None:
    from archerfish import LLM

    text_1 = "What is the capital of France?"
    texts_2 = ["What is the capital of France?", "The capital of France is Paris.", "Fish swim in the sea."]
    llm = LLM(model=MODEL, runner="pooling")
    outputs = llm.score(text_1, texts_2)
    scores = [output.outputs.score for output in outputs]
    assert scores[0] == pytest.approx(1.0) and scores[0] > scores[1] > scores[2] > -1
    pairs = llm.score(texts_2, texts_2, use_tqdm=False)
    assert [output.outputs.score for output in pairs] == pytest.approx([1.0] * 3)


class CarType(StrEnum):
    sedan = "sedan"
    suv = "SUV"


class CarDescription(BaseModel):
    brand: str
    car_type: CarType


SQL_GRAMMAR = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1 " | "col_2 "
table ::= "table_1 " | "table_2 "
condition ::= column "= " number
number ::= "1 " | "2 "
"""


def test_structured_outputs() -> None:
    from archerfish import LLM, GuidedDecodingParams, SamplingParams, StructuredOutputsParams

    llm = LLM(model=MODEL, max_model_len=256)

    def generate_output(prompt: str, sampling_params: SamplingParams) -> str:
        outputs = llm.generate(prompt, sampling_params=sampling_params)
        return outputs[0].outputs[0].text

    choice = StructuredOutputsParams(choice=["Positive", "Negative"])
    text = generate_output("Classify this sentiment: wonderful!", SamplingParams(structured_outputs=choice))
    assert text in ("Positive", "Negative")

    regex = StructuredOutputsParams(regex=r"[a-z]{1,8}@[a-z]{1,8}\.com\n")
    text = generate_output("An email address:", SamplingParams(structured_outputs=regex, stop=["\n"], max_tokens=50))
    assert re.fullmatch(r"[a-z]{1,8}@[a-z]{1,8}\.com", text)

    schema = CarDescription.model_json_schema()
    schema["properties"]["brand"]["maxLength"] = 12
    for form in (
        {"structured_outputs": StructuredOutputsParams(json=schema, disable_additional_properties=True)},
        {"guided_decoding": GuidedDecodingParams(json=json.dumps({**schema, "additionalProperties": False}))},
    ):
        text = generate_output("A car as JSON:", SamplingParams(**form, max_tokens=100, seed=1))  # type: ignore[arg-type]
        assert CarDescription.model_validate_json(text).car_type in CarType

    grammar = StructuredOutputsParams(grammar=SQL_GRAMMAR)
    text = generate_output("Generate an SQL query:", SamplingParams(structured_outputs=grammar, max_tokens=50))
    assert re.fullmatch(r"SELECT col_[12]  from table_[12]  where col_[12] = [12] ", text)


def test_prompt_logprobs() -> None:
    from archerfish import LLM, SamplingParams

    llm = LLM(model=MODEL)
    sampling_params = SamplingParams(temperature=0, max_tokens=1, logprobs=5, prompt_logprobs=0)
    (output,) = llm.generate("The capital of France is", sampling_params)
    total = 0.0
    for token_id, entry in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert entry[token_id].rank >= 1
        total += entry[token_id].logprob
    assert output.prompt_logprobs[0] is None and total < 0
    likeliest = max(output.outputs[0].logprobs[0].values(), key=lambda one: one.logprob)
    assert likeliest.rank == 1 and likeliest.decoded_token == output.outputs[0].text


def test_beam_search() -> None:
    from archerfish import LLM, BeamSearchParams

    llm = LLM(model=MODEL)
    params = BeamSearchParams(beam_width=5, max_tokens=10)
    outputs = llm.beam_search([{"prompt": "Hello, my name is "}], params)
    for output in outputs:
        assert len(output.sequences) == 5
        assert output.sequences[0].text.startswith("Hello, my name is")
        assert output.sequences[0].cum_logprob >= output.sequences[-1].cum_logprob


@pytest.mark.parametrize(
    "speculative_config",
    [
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        {"model": "minnow", "num_speculative_tokens": 3},
        {"method": "eagle3", "num_speculative_tokens": 2, "draft_tensor_parallel_size": 1},
    ],
    ids=["ngram", "draft model", "eagle3"],
)
def test_speculative_decoding(speculative_config: dict[str, Any]) -> None:
    from archerfish import LLM, SamplingParams

    prompts = ["The cat sat on the mat. The dog sat on the log. The cat sat on the mat. The dog sat on the"]
    sampling_params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    llm = LLM(model=MODEL, tensor_parallel_size=1, speculative_config=speculative_config)
    (output,) = llm.generate(prompts, sampling_params)
    assert 0 < output.metrics.num_accepted_tokens <= output.metrics.num_draft_tokens
    most = speculative_config["num_speculative_tokens"]
    assert output.metrics.num_draft_tokens <= most * output.metrics.num_drafts
    plain = LLM(model=MODEL, speculative_config={"method": "off"})
    assert plain.generate(prompts, sampling_params)[0].outputs[0].token_ids == output.outputs[0].token_ids


def test_prefix_caching() -> None:
    from archerfish import LLM, SamplingParams

    llm = LLM(model=MODEL, enable_prefix_caching=True, max_model_len=512)
    prompt = "A long prefix that many prompts share. " * 8
    params = SamplingParams(temperature=0, max_tokens=2)
    cached = [llm.generate(prompt, params)[0].num_cached_tokens for _ in range(2)]
    assert cached[0] == 0 < cached[1]
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, params)[0].num_cached_tokens == 0


def test_streaming_with_async_llm() -> None:
    from archerfish import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams

    async def stream_response(engine: AsyncLLM, prompt: str, request_id: str) -> str:
        sampling_params = SamplingParams(
            max_tokens=20,
            temperature=0.8,
            top_p=0.95,
            seed=42,
            output_kind=RequestOutputKind.DELTA,
        )
        text = ""
        async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
            for completion in output.outputs:
                text += completion.text
            if output.finished:
                break
        return text

    async def main() -> tuple[list[str], str]:
        engine_args = AsyncEngineArgs(model=MODEL, enforce_eager=False, disable_log_requests=True)
        engine = AsyncLLM.from_engine_args(engine_args)
        try:
            prompts = ["The future of artificial intelligence is", "In a galaxy far, far away"]
            streams = [stream_response(engine, prompt, f"stream-{i}") for i, prompt in enumerate(prompts, 1)]
            texts = await asyncio.gather(*streams)
            final_output = None
            async for request_output in engine.generate(prompts[0], SamplingParams(seed=1, max_tokens=4), "last"):
                final_output = request_output
            assert final_output is not None and final_output.finished
            return list(texts), final_output.outputs[0].text
        finally:
            engine.shutdown()

    texts, last = asyncio.run(main())
    assert len(texts) == 2 and all(texts) and last


def test_the_package_shows_its_public_names_alone() -> None:
    shown = dir(archerfish)
    assert {"LLM", "AsyncLLM", "AsyncLLMEngine", "SamplingParams", "EngineArgs", "__version__"} <= set(shown)
    assert not {"limit_thread_spinning", "hide_broken_amx", "import_module", "Any"} & set(shown)
    assert all(getattr(archerfish, name) is not None for name in shown)
