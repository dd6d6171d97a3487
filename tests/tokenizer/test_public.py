"""The tokenizer that users are given answers as the one of transformers does, made of the same files."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archerfish.errors import InvalidParameter
from archerfish.tokenizer import Tokenizer
from archerfish.tokenizer.public import PublicTokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if mood %}({{ mood }}){% endif %}"
)
CHAT = [{"role": "user", "content": "Hello, fish!"}]
TEXT = "The archerfish hunts <tool> insects, and 射水鱼 <|end|>"


@pytest.fixture(scope="module")
def directory(byte_level_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("public")
    (made / "tokenizer.json").write_bytes((byte_level_directory / "tokenizer.json").read_bytes())
    config = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (made / "tokenizer_config.json").write_text(json.dumps(config))
    return made


@pytest.fixture(scope="module")
def ours(directory: Path) -> PublicTokenizer:
    return PublicTokenizer(Tokenizer.load(directory), str(directory))


@pytest.fixture(scope="module")
def theirs(directory: Path) -> Any:
    import transformers

    return transformers.PreTrainedTokenizerFast.from_pretrained(str(directory))


def test_texts_become_the_same_tokens(ours: PublicTokenizer, theirs: Any) -> None:
    for options in ({}, {"add_special_tokens": False}, {"truncation": True, "max_length": 3}):
        assert ours.encode(TEXT, **options) == theirs.encode(TEXT, **options)
        for text in (TEXT, [TEXT, "fish"]):
            mine, wanted = ours(text, **options), theirs(text, **options)
            assert mine["input_ids"] == wanted["input_ids"] == mine.input_ids
            assert mine.attention_mask == wanted["attention_mask"]
    assert ours.tokenize(TEXT) == theirs.tokenize(TEXT)


def test_tokens_become_the_same_texts(ours: PublicTokenizer, theirs: Any) -> None:
    token_ids = theirs.encode(TEXT)
    for skip in (False, True):
        wanted = theirs.decode(token_ids, skip_special_tokens=skip)
        for given in (token_ids, np.array(token_ids), torch.tensor(token_ids), tuple(token_ids)):
            assert ours.decode(given, skip_special_tokens=skip) == wanted
        assert ours.batch_decode([token_ids, [5]], skip) == [wanted, theirs.decode([5], skip_special_tokens=skip)]
    assert ours.decode(token_ids[1]) == theirs.decode(token_ids[1])


def test_chats_are_laid_out_the_same(ours: PublicTokenizer, theirs: Any) -> None:
    for options in ({}, {"add_generation_prompt": True}, {"continue_final_message": True}, {"mood": "calm"}):
        for chat in (CHAT, [CHAT, [*CHAT, {"role": "assistant", "content": "Hi"}]]):
            wanted = theirs.apply_chat_template(chat, tokenize=False, **options)
            assert ours.apply_chat_template(chat, tokenize=False, **options) == wanted
            made = theirs.apply_chat_template(chat, tokenize=True, return_dict=True, **options)
            assert ours.apply_chat_template(chat, **options) == made["input_ids"]
            assert ours.apply_chat_template(chat, return_dict=True, **options)["input_ids"] == made["input_ids"]
    assert ours.apply_chat_template(CHAT, chat_template="{{ messages[0].role }}", tokenize=False) == "user"
    assert ours.chat_template == TEMPLATE


def test_the_vocabulary_is_the_same(ours: PublicTokenizer, theirs: Any) -> None:
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        assert getattr(ours, name) == getattr(theirs, name)
        assert getattr(ours, name + "_id") == getattr(theirs, name + "_id")
    assert (ours.vocab_size, len(ours)) == (theirs.vocab_size, len(theirs)) and ours.vocab_size < len(ours)
    assert ours.get_vocab() == theirs.get_vocab() and ours.max_token_id == max(ours.get_vocab().values())
    assert set(ours.all_special_ids) == set(theirs.all_special_ids)
    assert set(ours.all_special_tokens) == set(theirs.all_special_tokens)
    token = ours.convert_ids_to_tokens(7)
    assert token == theirs.convert_ids_to_tokens(7) and ours.convert_tokens_to_ids(token) == 7
    assert ours.convert_ids_to_tokens([7, 8]) == theirs.convert_ids_to_tokens([7, 8])
    assert ours.convert_tokens_to_ids([token, "no such token"]) == [7, None]


def test_a_token_to_pad_with_can_be_set(directory: Path) -> None:
    ours = PublicTokenizer(Tokenizer.load(directory), str(directory))
    assert ours.pad_token is ours.pad_token_id is None and "pad_token" not in ours.special_tokens_map
    ours.pad_token = ours.eos_token
    assert (ours.pad_token, ours.pad_token_id) == ("<|end|>", ours.eos_token_id)
    assert ours.special_tokens_map["pad_token"] == "<|end|>"
    ours.pad_token_id = ours.bos_token_id
    assert ours.pad_token == ours.bos_token
    for name, value in (("pad_token", "no such token"), ("pad_token_id", 10**6)):
        with pytest.raises(InvalidParameter, match=name):
            setattr(ours, name, value)
    assert ours.pad_token == ours.bos_token
    ours.pad_token = None
    assert ours.pad_token_id is None


def test_tensors_have_a_row_for_each_text(ours: PublicTokenizer) -> None:
    ids = ours.encode("fish")
    assert torch.equal(ours("fish", return_tensors="pt").input_ids, torch.tensor([ids]))
    assert ours(["fish", "fish"], return_tensors="np").input_ids.tolist() == [ids, ids]
    assert ours.apply_chat_template(CHAT, return_tensors="pt").shape[0] == 1


def test_what_it_does_not_do_is_refused(ours: PublicTokenizer) -> None:
    for call, named in (
        (lambda: ours("fish", padding=True), "padding"),
        (lambda: ours(["fish", "two fish"], return_tensors="pt"), "return_tensors"),
        (lambda: ours("fish", return_tensors="tf"), "return_tensors"),  # type: ignore[arg-type]
        (lambda: ours.encode("fish", truncation=True), "max_length"),
        (
            lambda: ours.apply_chat_template(CHAT, add_generation_prompt=True, continue_final_message=True),
            "continue_final_message",
        ),
    ):
        with pytest.raises(InvalidParameter) as caught:
            call()
        assert caught.value.name == named


def test_it_may_be_awaited(ours: PublicTokenizer) -> None:
    async def get() -> PublicTokenizer:
        return await ours

    assert asyncio.run(get()) is ours
