"""/v1/embeddings: what an independent implementation's last states come to."""

import openai
import pytest
import torch
import transformers

from archerfish import LLM
from archerfish.box import models_in_box

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


def test_dimensions_cannot_be_chosen(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="perch", input="x", dimensions=8)
