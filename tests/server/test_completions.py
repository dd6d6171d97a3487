"""/v1/completions: prompts of every kind, scores as evaluation tools need them."""

from operator import itemgetter
from typing import Any

import httpx
import openai
import pytest

from archerfish import LLM, SamplingParams
from tests.server.running import RunningService

TEXT = "The fox ran into the forest and"


def test_texts_token_ids_and_lists_of_them(client: openai.OpenAI, llm: LLM) -> None:
    ids = llm.generate(TEXT, SamplingParams(max_tokens=1), progress=False)[0].prompt_token_ids
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
    expected = [one.outputs[0].text for one in llm.generate([TEXT, "Once"], SamplingParams(**params), progress=False)]
    for prompt in (TEXT, ids, [TEXT], [ids]):
        reply = client.completions.create(model="perch", prompt=prompt, **params)  # type: ignore[call-overload]
        assert [choice.text for choice in reply.choices] == expected[:1]
    reply = client.completions.create(model="perch", prompt=[TEXT, "Once"], n=2, **{**params, "temperature": 0})
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in reply.choices] == [expected[0], expected[0], expected[1], expected[1]]
    texts = ["", ""]
    for chunk in client.completions.create(model="perch", prompt=[TEXT, "Once"], stream=True, **params):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == expected


def test_each_chunk_has_the_counts_so_far_if_wanted(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    prompts = [TEXT, "Once"]
    *chunks, last = client.completions.create(
        model="perch", prompt=prompts, stream=True, stream_options=options, max_tokens=5, temperature=0
    )
    assert last.usage is not None and not last.choices
    ends: dict[int, Any] = {}
    for chunk in chunks:
        assert chunk.usage is not None
        ends[chunk.choices[0].index] = chunk.usage
    assert ends[0].prompt_tokens > ends[1].prompt_tokens, "each prompt is counted by itself"
    assert sum(one.prompt_tokens for one in ends.values()) == last.usage.prompt_tokens
    assert sum(one.completion_tokens for one in ends.values()) == last.usage.completion_tokens == 10


def test_scores_are_the_offline_engine_s_bit_for_bit(service: RunningService, llm: LLM) -> None:
    """The request that evaluation harnesses send, read as they read it."""
    contexts, ends = ["The fox ran", "April is the fourth"], [" into the forest", " month of the year"]
    prompts = [
        list(llm.generate(context + end, SamplingParams(max_tokens=1), progress=False)[0].prompt_token_ids)
        for context, end in zip(contexts, ends, strict=True)
    ]
    payload = {
        "model": "perch",
        "prompt": prompts,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    reply = httpx.post(f"{service.url}/v1/completions", json=payload, timeout=60).json()
    assert reply["usage"]["prompt_tokens"] == sum(map(len, prompts)), "no token was put before them"
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=1, prompt_logprobs=1)
    for choice, prompt in zip(sorted(reply["choices"], key=itemgetter("index")), prompts, strict=True):
        [expected] = llm.generate([prompt], params, progress=False)
        assert expected.prompt_logprobs is not None
        told = choice["logprobs"]
        ours = [None] + [
            entry[token].logprob for token, entry in zip(prompt[1:], expected.prompt_logprobs[1:], strict=True) if entry
        ]
        assert told["token_logprobs"][:-1] == ours
        assert len(told["tokens"]) == len(told["top_logprobs"]) == len(told["text_offset"]) == len(prompt) + 1
        for token, own, top in list(zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True))[1:]:
            assert top[token] == own, "the chosen token is among the top ones with exactly its own number"
        assert choice["text"].startswith("".join(told["tokens"][:-1]))


def test_scoring_alone_writes_nothing(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="perch", prompt=TEXT, max_tokens=0, echo=True, logprobs=2)
    assert reply.choices[0].text == TEXT and reply.usage is not None and reply.usage.completion_tokens == 0
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.completions.create(model="perch", prompt=TEXT, max_tokens=0)


def test_token_ids_and_back(service: RunningService) -> None:
    with httpx.Client(base_url=service.url) as http:
        tokens = http.post("/tokenize", json={"prompt": TEXT, "return_token_strs": True}).json()
        assert "".join(tokens["token_strs"]) == TEXT and tokens["count"] == len(tokens["tokens"])
        assert http.post("/detokenize", json={"tokens": tokens["tokens"]}).json() == {"prompt": TEXT}
        chat = http.post("/tokenize", json={"messages": [{"role": "user", "content": "Hi"}]}).json()
        assert http.post("/detokenize", json={"tokens": chat["tokens"]}).json()["prompt"].endswith("<|assistant|>")
        assert http.post("/tokenize", json={}).status_code == 400
        assert http.post("/detokenize", json={"tokens": [99999]}).json()["error"]["param"] == "prompt"
        assert http.get("/version").json()["version"]
        assert http.get("/v1/models").json()["data"][0]["id"] == "perch"
        assert http.get("/v1/models/perch").status_code == 200
        assert http.get("/v1/models/other").status_code == 404
        assert http.get("/nowhere").json()["error"]["type"] == "not_found_error"


def test_the_best_of_several(client: openai.OpenAI) -> None:
    params: dict[str, Any] = {"model": "perch", "prompt": TEXT, "max_tokens": 8, "seed": 3, "logprobs": 0}
    every = client.completions.create(n=4, **params).choices
    best = client.completions.create(n=2, best_of=4, **params)

    def mean(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return float(sum(values) / len(values))

    expected = sorted(every, key=mean, reverse=True)[:2]
    assert [one.text for one in best.choices] == [one.text for one in expected]
    assert best.usage is not None and best.usage.completion_tokens == 32
    with pytest.raises(openai.BadRequestError, match=r"best_of = 4 .*cannot be combined with stream"):
        client.completions.create(best_of=4, stream=True, **params)


def test_how_likely_the_prompt_is(client: openai.OpenAI) -> None:
    reply = client.completions.create(
        model="perch", prompt=[TEXT, "Once"], max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    for choice in reply.choices:
        none, *rest = choice.model_extra["prompt_logprobs"]  # type: ignore[index]
        assert none is None and all(len(one) == 1 for one in rest)
