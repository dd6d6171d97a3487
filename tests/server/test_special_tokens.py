"""Tokens that a tokenizer puts around a text: a prompt has them over HTTP and in a batch, as it has them offline."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tokenizers
from tokenizers.processors import TemplateProcessing

from archerfish import LLM, SamplingParams
from tests.checkpoints import write_checkpoint
from tests.cli.running import archerfish
from tests.server.running import running_service

PLAIN = ("--dtype", "float32", "--max-num-seqs", "1", "--no-enable-prefix-caching")
TEXT = "The quick <s> brown fox"
FIRST, LAST = 0, 1
"""Ids of <s> and </s>."""
CHAT = [{"role": "user", "content": "Hi"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer puts <s> before and </s> after every text."""
    directory = write_checkpoint(tmp_path_factory.mktemp("model"))
    path = str(directory / "tokenizer.json")
    vocabulary = tokenizers.Tokenizer.from_file(path)
    vocabulary.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", FIRST), ("</s>", LAST)]
    )
    vocabulary.save(path)
    return directory


@pytest.fixture(scope="module")
def http(directory: Path) -> Iterator[httpx.Client]:
    options = ("--model", str(directory), "--served-model-name", "tiny", *PLAIN)
    with running_service(*options) as service, httpx.Client(base_url=service.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), dtype="float32", threads=1, max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield llm


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_completion_is_that_of_the_offline_engine(http: httpx.Client, llm: LLM) -> None:
    [expected] = llm.generate(TEXT, SamplingParams(prompt_logprobs=1, logprobs=1, **GREEDY), progress=False)
    assert expected.prompt_token_ids[0] == FIRST and expected.prompt_token_ids[-1] == LAST
    reply = post(http, "/v1/completions", prompt=TEXT, prompt_logprobs=1, **GREEDY)
    [choice] = reply["choices"]
    assert reply["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    assert choice["text"] == expected.outputs[0].text
    assert expected.prompt_logprobs is not None
    for told, own in zip(choice["prompt_logprobs"], expected.prompt_logprobs, strict=True):
        values = {int(token): one["logprob"] for token, one in (told or {}).items()}
        assert values == {token: one.logprob for token, one in (own or {}).items()}

    bare = post(http, "/v1/completions", prompt=TEXT, add_special_tokens=False, **GREEDY)
    assert bare["usage"]["prompt_tokens"] == len(expected.prompt_token_ids) - 2
    ids = post(http, "/v1/completions", prompt=expected.prompt_token_ids, **GREEDY)
    assert ids["usage"] == reply["usage"] and ids["choices"][0]["text"] == choice["text"]


def test_an_echo_is_the_text_and_offsets_point_into_it(http: httpx.Client) -> None:
    reply = post(http, "/v1/completions", prompt=TEXT, echo=True, max_tokens=0, logprobs=1)
    [choice] = reply["choices"]
    assert choice["text"] == TEXT
    told = choice["logprobs"]
    assert (told["tokens"][0], told["tokens"][-1]) == ("<s>", "</s>") and told["token_logprobs"][0] is None
    assert told["tokens"].count("<s>") == 2, "one of them is in the text itself"
    for token, offset in list(zip(told["tokens"], told["text_offset"], strict=True))[1:-1]:
        assert TEXT[offset : offset + len(token)] == token
    assert (told["text_offset"][:2], told["text_offset"][-1]) == ([0, 0], len(TEXT))
    assert reply["usage"]["prompt_tokens"] == len(told["tokens"])


def test_a_prompt_is_cut_as_offline(http: httpx.Client, llm: LLM) -> None:
    for most in (3, -1):
        params = SamplingParams(truncate_prompt_tokens=most, **GREEDY)
        [expected] = llm.generate(TEXT * 40, params, progress=False)
        reply = post(http, "/v1/completions", prompt=TEXT * 40, truncate_prompt_tokens=most, echo=True, **GREEDY)
        assert reply["usage"]["prompt_tokens"] == len(expected.prompt_token_ids) == (3 if most == 3 else 250)
        kept = llm.get_tokenizer().decode(expected.prompt_token_ids)
        assert reply["choices"][0]["text"] == kept + expected.outputs[0].text
    whole = post(http, "/v1/completions", prompt=TEXT, truncate_prompt_tokens=200, echo=True, **GREEDY)
    assert whole["choices"][0]["text"].startswith(TEXT)
    cut = post(http, "/v1/embeddings", input=TEXT, truncate_prompt_tokens=4)
    assert cut["usage"]["prompt_tokens"] == 4
    chat = post(http, "/v1/chat/completions", messages=CHAT, truncate_prompt_tokens=5, **GREEDY)
    assert chat["usage"]["prompt_tokens"] == 5


def test_embeddings_are_those_of_the_offline_engine(http: httpx.Client, llm: LLM) -> None:
    [expected] = llm.embed([TEXT], progress=False)
    reply = post(http, "/v1/embeddings", input=TEXT)
    assert reply["data"][0]["embedding"] == pytest.approx(expected.outputs.embedding)
    num_tokens = reply["usage"]["prompt_tokens"]
    assert num_tokens == len(expected.prompt_token_ids)
    bare = post(http, "/v1/embeddings", input=TEXT, add_special_tokens=False)
    assert bare["usage"]["prompt_tokens"] == num_tokens - 2
    assert bare["data"][0]["embedding"] != pytest.approx(expected.outputs.embedding)


def test_tokenize_counts_what_a_request_counts(http: httpx.Client, llm: LLM) -> None:
    ids = llm.get_tokenizer().encode(TEXT)
    assert post(http, "/tokenize", prompt=TEXT)["tokens"] == ids
    assert post(http, "/tokenize", prompt=TEXT, add_special_tokens=False)["tokens"] == ids[1:-1]

    chat = post(http, "/tokenize", messages=CHAT)["tokens"]
    assert chat.count(FIRST) == 2 and chat[-1] == FIRST, "only the template writes such tokens"
    assert post(http, "/v1/chat/completions", messages=CHAT, **GREEDY)["usage"]["prompt_tokens"] == len(chat)
    added = post(http, "/tokenize", messages=CHAT, add_special_tokens=True)["tokens"]
    assert added == [FIRST, *chat, LAST]
    reply = post(http, "/v1/chat/completions", messages=CHAT, add_special_tokens=True, **GREEDY)
    assert reply["usage"]["prompt_tokens"] == len(added)
    begun = [*CHAT, {"role": "assistant", "content": "The quick"}]
    for fields in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        counted = post(http, "/tokenize", messages=begun, **fields)["count"]
        reply = post(http, "/v1/chat/completions", messages=begun, **fields, **GREEDY)
        assert reply["usage"]["prompt_tokens"] == counted
    assert http.post("/tokenize", json={"prompt": "a", "continue_final_message": True}).status_code == 400


def test_a_line_of_a_batch_gets_the_same(http: httpx.Client, directory: Path, tmp_path: Path) -> None:
    lines = [
        ("/v1/completions", {"prompt": TEXT, "echo": True, "logprobs": 1, "prompt_logprobs": 1, **GREEDY}),
        ("/v1/completions", {"prompt": [TEXT, [5, 6, 7]], "truncate_prompt_tokens": 2, "echo": True, **GREEDY}),
        ("/v1/completions", {"prompt": TEXT, "add_special_tokens": False, **GREEDY}),
        ("/v1/chat/completions", {"messages": CHAT, "add_special_tokens": True, **GREEDY}),
        ("/v1/embeddings", {"input": TEXT, "normalize": True}),
    ]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for number, (url, body) in enumerate(lines):
            line = {"custom_id": str(number), "method": "POST", "url": url, "body": body}
            file.write(json.dumps(line) + "\n")
    named = ("--model", str(directory), "--served-model-name", "tiny", "--threads", "1")
    result = archerfish("batch", "-i", str(source), "-o", str(output), *named, *PLAIN)
    assert result.exit_code == 0, result.stderr
    for text, (url, body) in zip(output.read_text().splitlines(), lines, strict=True):
        offline = json.loads(text)["response"]["body"]
        online = post(http, url, **body)
        for differing in ("id", "created"):
            offline.pop(differing, None)
            online.pop(differing, None)
        assert offline == online
