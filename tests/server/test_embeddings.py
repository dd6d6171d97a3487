"""/v1/embeddings: what an independent implementation's last states come to."""

import math

import httpx
import openai
import pytest
import torch
import transformers

from archerfish import LLM
from archerfish.box import models_in_box
from tests.server.running import running_service

TEXTS = ["The fox ran into the forest.", "April", "Once upon a time there was a little fish. " * 12]


@pytest.fixture(scope="module")
def expected() -> list[list[float]]:
    directory = models_in_box()["perch"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.no_grad():
        return [
            model(torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0].mean(0).tolist() for text in TEXTS
        ]


def test_they_are_the_means_of_the_last_states(client: openai.OpenAI, expected: list[list[float]]) -> None:
    for encoding in ("float", "base64"):
        reply = client.embeddings.create(model="perch", input=TEXTS, encoding_format=encoding)  # type: ignore[arg-type]
        assert [one.index for one in reply.data] == [0, 1, 2] and reply.usage.prompt_tokens > 100
    reply = client.embeddings.create(model="perch", input=TEXTS)
    for one, wanted in zip(reply.data, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one.embedding), torch.tensor(wanted), atol=1e-4, rtol=1e-4)


def test_in_chunks_and_again_with_a_warm_cache(expected: list[list[float]]) -> None:
    with LLM(dtype="float32", threads=1, max_num_seqs=4, max_num_batched_tokens=29) as llm:
        for _ in range(2):
            for found, wanted in zip(llm.embed(TEXTS, progress=False), expected, strict=True):
                embedding = torch.tensor(found.outputs.embedding)
                torch.testing.assert_close(embedding, torch.tensor(wanted), atol=1e-4, rtol=1e-4)


def test_they_are_scaled_only_on_request(client: openai.OpenAI) -> None:
    plain, scaled, same = (
        client.embeddings.create(model="perch", input="x", extra_body=fields).data[0].embedding
        for fields in ({}, {"normalize": True}, {"normalize": False})
    )
    length = math.hypot(*plain)
    assert length > 1.5 and same == plain
    assert scaled == pytest.approx([value / length for value in plain], rel=1e-6)


def test_dimensions_are_those_of_the_model(client: openai.OpenAI) -> None:
    whole = client.embeddings.create(model="perch", input="x").data[0].embedding
    size = len(whole)
    assert client.embeddings.create(model="perch", input="x", dimensions=size).data[0].embedding == whole
    with pytest.raises(openai.BadRequestError, match=f"embeddings have {size} numbers, .* leave it out"):
        client.embeddings.create(model="perch", input="x", dimensions=8)


def test_a_model_that_is_said_to_be_trained_for_it_is_cut() -> None:
    with running_service("--max-num-seqs", "4", "--hf-overrides", '{"is_matryoshka": true}') as running:
        reply = httpx.post(f"{running.url}/v1/embeddings", json={"input": "x", "dimensions": 8}, timeout=60).json()
        [values] = [one["embedding"] for one in reply["data"]]
        assert len(values) == 8 and sum(value * value for value in values) == pytest.approx(1.0)
        body = {"input": "x", "dimensions": 8, "normalize": False}
        reply = httpx.post(f"{running.url}/v1/embeddings", json=body, timeout=60).json()
        assert math.hypot(*reply["data"][0]["embedding"]) != pytest.approx(1.0)
