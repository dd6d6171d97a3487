"""Encoding and decoding agree with transformers; broken files and texts are refused with a reason."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from archerfish.errors import RequestError, TokenizerError
from archerfish.tokenizer import Tokenizer


def edit(source: Path, target: Path, **config: Any) -> Path:
    """A copy of a tokenizer with other settings."""
    shutil.copytree(source, target, dirs_exist_ok=True)
    path = target / "tokenizer_config.json"
    merged = json.loads(path.read_text(encoding="utf-8")) | config
    path.write_text(json.dumps(merged), encoding="utf-8")
    return target


def reference(directory: Path, **options: Any) -> Any:
    import transformers

    config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    named = {
        name: value["content"] if isinstance(value, dict) else value
        for name, value in config.items()
        if name in ("bos_token", "eos_token", "unk_token")
    }
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_file=str(directory / "tokenizer.json"), **named, **options)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "word_piece"])
def test_agrees_with_transformers(kind: str, request: pytest.FixtureRequest, sentences: tuple[str, ...]) -> None:
    directory = request.getfixturevalue(f"{kind}_directory")
    ours, theirs = Tokenizer.load(directory), reference(directory)
    for text in (*sentences, "", " ", "<s>in text</s>", "<|begin|>in text<|end|>"):
        for add_special_tokens in (True, False):
            ids = ours.encode(text, add_special_tokens=add_special_tokens)
            assert ids == theirs.encode(text, add_special_tokens=add_special_tokens)
            for skip in (True, False):
                assert ours.decode(ids, skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.vocab_size == len(theirs)
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_id == theirs.eos_token_id
    special = {token_id for token_id, token in theirs.added_tokens_decoder.items() if token.special}
    assert ours.special_token_ids == special


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("add_eos", [True, False])
def test_bos_and_eos_as_configured(
    kind: str, add_bos: bool, add_eos: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(f"{kind}_directory")
    directory = edit(source, tmp_path, add_bos_token=add_bos, add_eos_token=add_eos)
    ours = Tokenizer.load(directory)
    theirs = reference(directory, add_bos_token=add_bos, add_eos_token=add_eos)
    for text in ("Hello world", "", "<s>twice", "<|begin|>twice"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ids == [ours.bos_token_id] * add_bos + ours.encode(text, False) + [ours.eos_token_id] * add_eos


def test_bos_stays_as_it_is_when_not_configured(byte_level_directory: Path, tmp_path: Path) -> None:
    ours = Tokenizer.load(edit(byte_level_directory, tmp_path, add_bos_token=None, add_eos_token=True))
    assert ours.encode("fish") == [ours.bos_token_id, *ours.encode("fish", False), ours.eos_token_id]


def test_bos_that_does_not_exist_is_not_added(byte_level_directory: Path, tmp_path: Path) -> None:
    directory = edit(byte_level_directory, tmp_path, bos_token=None, add_bos_token=True)
    ours = Tokenizer.load(directory)
    assert ours.bos_token_id is None
    assert ours.encode("fish") == Tokenizer.load(byte_level_directory).encode("fish")


def test_special_tokens_map_fills_in(byte_level_directory: Path, tmp_path: Path) -> None:
    directory = edit(byte_level_directory, tmp_path)
    (directory / "tokenizer_config.json").unlink()
    assert Tokenizer.load(directory).eos_token_id is None
    (directory / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|end|>"}}')
    loaded = Tokenizer.load(directory)
    assert loaded.eos_token_id == loaded.encode("<|end|>", False)[0]
    assert loaded.special_tokens == {"eos_token": "<|end|>"}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"eos_token": "<tool>"}, "<|end|>"),
        ({"eos_token": "<tool>", "added_tokens_decoder": {}}, "<tool>"),
        ({"added_tokens_decoder": {}}, "<|end|>"),
    ],
)
def test_special_tokens_map_rules_only_over_old_configurations(
    config: dict[str, Any], expected: str, byte_level_directory: Path, tmp_path: Path
) -> None:
    shutil.copy(byte_level_directory / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": "<|end|>"}')
    assert Tokenizer.load(tmp_path).special_tokens == {"eos_token": expected}


def test_token_named_in_the_configuration_becomes_special(byte_level_directory: Path, tmp_path: Path) -> None:
    plain = Tokenizer.load(byte_level_directory)
    tool = plain.encode("<tool>", False)
    assert plain.decode(tool) == "<tool>"
    configs: list[dict[str, Any]] = [
        {"pad_token": "<tool>"},
        {"additional_special_tokens": ["<tool>"]},
        {"extra_special_tokens": {"tool_token": "<tool>"}},
        {"added_tokens_decoder": {str(tool[0]): {"content": "<tool>", "special": True}}},
    ]
    for number, config in enumerate(configs):
        loaded = Tokenizer.load(edit(byte_level_directory, tmp_path / str(number), **config))
        assert loaded.special_token_ids == plain.special_token_ids | set(tool)
        assert loaded.decode(tool) == ""
        assert loaded.decode(tool, skip_special_tokens=False) == "<tool>"


def test_declared_tokens_are_added_where_their_id_fits(
    byte_level: Tokenizer, byte_level_directory: Path, tmp_path: Path
) -> None:
    size = byte_level.vocab_size
    declared = {str(size): {"content": "<next>"}, str(size + 7): {"content": "<elsewhere>"}}
    loaded = Tokenizer.load(edit(byte_level_directory, tmp_path, added_tokens_decoder=declared, eos_token="<nowhere>"))
    assert loaded.encode("<next>", False) == [size]
    assert loaded.vocab_size == size + 1
    assert loaded.eos_token_id is None


def test_vocabulary_size_counts_holes(tmp_path: Path) -> None:
    vocabulary = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert loaded.vocab_size == 10
    assert loaded.decode([9, 5, 0]) == "b a"


def test_truncation_and_padding_saved_in_the_file_are_not_applied(byte_level_directory: Path, tmp_path: Path) -> None:
    vocabulary = tokenizers.Tokenizer.from_file(str(byte_level_directory / "tokenizer.json"))
    vocabulary.enable_truncation(4)
    vocabulary.enable_padding(length=64)
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    text = "It hardly ever misses. " * 4
    assert Tokenizer.load(tmp_path).encode(text) == Tokenizer.load(byte_level_directory).encode(text)


def test_split_special_tokens(byte_level_directory: Path, tmp_path: Path) -> None:
    loaded = Tokenizer.load(edit(byte_level_directory, tmp_path, split_special_tokens=True))
    assert loaded.eos_token_id not in loaded.encode("a<|end|>")


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**32, 2**80])
def test_unknown_token_id_has_no_text(any_tokenizer: Tokenizer, token_id: int) -> None:
    ids = any_tokenizer.encode("The archerfish", False)
    assert any_tokenizer.decode([token_id]) == ""
    assert any_tokenizer.token_text(token_id) == ""
    assert any_tokenizer.decode([ids[0], token_id, *ids[1:]]) == any_tokenizer.decode(ids)


@given(text=st.text())
def test_byte_level_round_trip(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text, False), skip_special_tokens=False) == text


@given(text=st.text(alphabet=st.characters(exclude_characters="▁", exclude_categories=["Cs"])))
def test_byte_fallback_round_trip(byte_fallback: Tokenizer, text: str) -> None:
    assert byte_fallback.decode(byte_fallback.encode(text, False), skip_special_tokens=False) == text


def test_token_text_keeps_leading_spaces(any_tokenizer: Tokenizer) -> None:
    ids = any_tokenizer.encode("The archerfish hunts insects by shooting water", False)
    texts = [any_tokenizer.token_text(token_id) for token_id in ids]
    assert "".join(texts).strip() == "The archerfish hunts insects by shooting water"
    assert any(text.startswith(" ") for text in texts[1:])


def test_token_text_of_special_and_partial_tokens(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    assert byte_level.token_text(byte_level.eos_token_id or 0) == "<|end|>"
    assert byte_fallback.token_text(byte_fallback.eos_token_id or 0) == "</s>"
    first_byte = byte_fallback.encode("好", False)[1]
    assert byte_fallback.token_text(first_byte) == "\ufffd"


@pytest.mark.parametrize("text", [None, 7, b"bytes", ["a", "b"], ("a", "b")])
def test_only_text_is_encoded(byte_level: Tokenizer, text: Any) -> None:
    with pytest.raises(RequestError, match=f"only text can be tokenized, but this is a {type(text).__name__}"):
        byte_level.encode(text)


def test_half_a_surrogate_pair_is_refused(any_tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match=r"half of a surrogate pair \(U\+D83D at character 2\)"):
        any_tokenizer.encode("ab\ud83d")


def test_text_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    vocabulary = tokenizers.Tokenizer(models.WordLevel({"fish": 0}, unk_token="missing"))
    vocabulary.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    vocabulary.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert loaded.encode("fish fish") == [0, 0]
    assert loaded.token_text(0) == "fish"
    with pytest.raises(RequestError, match="this tokenizer cannot encode the text"):
        loaded.encode("fish bird")


def refusal(directory: Path) -> str:
    with pytest.raises(TokenizerError) as caught:
        Tokenizer.load(directory)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_no_tokenizer(tmp_path: Path) -> None:
    assert f"{tmp_path} has no tokenizer.json" in refusal(tmp_path)
    assert "has no tokenizer.json" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_only_an_older_format(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"{}")
    message = refusal(tmp_path)
    assert f"has {name} but no tokenizer.json" in message
    assert "AutoTokenizer.from_pretrained(directory).save_pretrained(directory)" in message


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"version": "1.0", ', "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b"\xff\xfe{\x00}", "is not UTF-8 text"),
        ("[" * 100_000, "is not valid JSON"),
        (b"[1, 2]", ""),
        (None, "cannot be read"),
    ],
    ids=["cut", "empty", "utf-16", "deep", "list", "directory"],
)
def test_broken_file(
    byte_level_directory: Path, tmp_path: Path, name: str, content: bytes | str | None, reason: str
) -> None:
    directory = edit(byte_level_directory, tmp_path)
    (directory / name).unlink(missing_ok=True)
    if content is None:
        (directory / name).mkdir()
    else:
        (directory / name).write_bytes(content.encode() if isinstance(content, str) else content)
    message = refusal(directory)
    assert str(directory / name) in message
    assert reason in message


@pytest.mark.parametrize(
    "content",
    ["{}", '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', '{"model": {"type": "Newer"}}'],
)
def test_json_that_is_no_tokenizer(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    message = refusal(tmp_path)
    assert f"{tmp_path / 'tokenizer.json'} is not a tokenizer" in message
    assert "upgrade tokenizers, or save the tokenizer again" in message


def test_empty_vocabulary(tmp_path: Path) -> None:
    tokenizers.Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    assert "has an empty vocabulary" in refusal(tmp_path)


@pytest.mark.parametrize("declared", [[1], {"x": {"content": "a"}}, {"1": 7}, {"1": {"text": "a"}}, {"01": {}}])
def test_broken_declarations(byte_level_directory: Path, tmp_path: Path, declared: Any) -> None:
    message = refusal(edit(byte_level_directory, tmp_path, added_tokens_decoder=declared))
    assert "tokenizer_config.json has an added_tokens_decoder that is not understood" in message


def test_threads_share_a_tokenizer(byte_level: Tokenizer, sentences: tuple[str, ...]) -> None:
    def round_trip(text: str) -> str:
        return byte_level.decode(byte_level.encode(text))

    texts = list(sentences) * 30
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, texts)) == texts
