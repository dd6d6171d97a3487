"""Small tokenizers of every kind that models come with, trained here on a few sentences in many scripts."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from archerfish.tokenizer import Tokenizer
from archerfish.tokenizer.chat import ChatTemplate

SENTENCES = (
    "The archerfish hunts insects by shooting water at them, and it hardly ever misses.",
    "It's 3.14 o'clock; don't panic!  Two  spaces,\ttabs\nand\r\nnew lines.",
    "射水鱼用水柱击落昆虫。你好，世界！",
    "水鉄砲魚は、口から水を飛ばして虫を落とします。",
    "سمكة الرامي تصطاد الحشرات برش الماء عليها.",
    "תירה היא דג שיורה מים על חרקים.",
    "धनुर्धर मछली पानी फेंककर कीड़ों का शिकार करती है।",
    "Рыба-брызгун сбивает насекомых струёй воды.",
    "L'archer cracheur déloge des insectes à l'aide d'un jet d'eau; où ça? Là-bas, à Orléans.",
    "Schützenfische schießen Insekten mit Wasser ab. Größe: 30 cm.",
    "물총고기는 물을 뿌려 곤충을 잡는다.",
    "ปลาเสือพ่นน้ำยิงแมลงด้วยน้ำ",
    "Families 👨‍👩‍👧‍👦, flags 🇳🇴🇯🇵, skin 👍🏽, hearts ❤️‍🔥 and keycaps 1️⃣.",
    "e\u0301 is e with a combining accent, Z\u0351\u036b\u0343 with many; 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 and 𓀀 lie beyond the first plane.",
)

BOS, EOS = "<|begin|>", "<|end|>"


def save(vocabulary: tokenizers.Tokenizer, directory: Path, config: dict[str, Any] | None = None) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary.save(str(directory / "tokenizer.json"))
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def train_byte_level() -> tokenizers.Tokenizer:
    """As of GPT-2, Llama 3 and Qwen: every byte is a letter."""
    vocabulary = tokenizers.Tokenizer(models.BPE())
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocabulary.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[BOS, EOS],
        show_progress=False,
    )
    vocabulary.train_from_iterator(SENTENCES, trainer)
    vocabulary.add_tokens(["<tool>"])
    vocabulary.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, vocabulary.token_to_id(BOS))]
    )
    return vocabulary


def train_byte_fallback() -> tokenizers.Tokenizer:
    """As of Llama 2 and Mistral: words begin with a mark for the space; unknown characters are spelled in bytes."""
    vocabulary = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    vocabulary.pre_tokenizer = pre_tokenizers.Metaspace()
    # Only the first sentence is learned, so that other scripts are spelled in bytes.
    trainer = trainers.BpeTrainer(
        vocab_size=90, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, limit_alphabet=40
    )
    vocabulary.train_from_iterator([SENTENCES[0]] * 4 + ["射水"], trainer)
    vocabulary.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    description = json.loads(vocabulary.to_str())
    description["pre_tokenizer"] = None
    words = description["model"]["vocab"]
    for byte in range(256):
        words[f"<0x{byte:02X}>"] = len(words)
    vocabulary = tokenizers.Tokenizer.from_str(json.dumps(description))
    vocabulary.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    vocabulary.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return vocabulary


def train_word_piece() -> tokenizers.Tokenizer:
    """As of BERT: tokens within a word begin with ##."""
    vocabulary = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    vocabulary.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    vocabulary.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=500, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False)
    vocabulary.train_from_iterator(SENTENCES, trainer)
    return vocabulary


@pytest.fixture(scope="session")
def sentences() -> tuple[str, ...]:
    return SENTENCES


@pytest.fixture(scope="session")
def byte_level_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {"bos_token": BOS, "eos_token": {"content": EOS, "special": True}}
    return save(train_byte_level(), tmp_path_factory.mktemp("byte_level"), config)


@pytest.fixture(scope="session")
def byte_fallback_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return save(train_byte_fallback(), tmp_path_factory.mktemp("byte_fallback"), config)


@pytest.fixture(scope="session")
def word_piece_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(train_word_piece(), tmp_path_factory.mktemp("word_piece"), {"unk_token": "[UNK]"})


@pytest.fixture(scope="session")
def byte_level(byte_level_directory: Path) -> Tokenizer:
    return Tokenizer.load(byte_level_directory)


@pytest.fixture(scope="session")
def byte_fallback(byte_fallback_directory: Path) -> Tokenizer:
    return Tokenizer.load(byte_fallback_directory)


@pytest.fixture(scope="session")
def word_piece(word_piece_directory: Path) -> Tokenizer:
    return Tokenizer.load(word_piece_directory)


@pytest.fixture(params=["byte_level", "byte_fallback", "word_piece"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = request.getfixturevalue(request.param)
    assert isinstance(tokenizer, Tokenizer)
    return tokenizer


ChunkTokens = Callable[[Sequence[bytes]], tuple[Tokenizer, list[int]]]


@pytest.fixture(scope="session")
def chunk_tokens() -> ChunkTokens:
    """Makes a byte-level tokenizer in which each given chunk of bytes is one token, and the tokens of the chunks."""
    letters = _byte_letters()

    def make(chunks: Sequence[bytes]) -> tuple[Tokenizer, list[int]]:
        words = ["".join(letters[byte] for byte in chunk) for chunk in chunks]
        ids = {word: token_id for token_id, word in enumerate(dict.fromkeys(words))}
        ids[""] = len(ids)
        vocabulary = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[]))
        vocabulary.decoder = decoders.ByteLevel()
        return Tokenizer(vocabulary, {}, ChatTemplate({}, {})), [ids[word] for word in words]

    return make


def _byte_letters() -> dict[int, str]:
    """The letter that byte-level vocabularies write for each byte, as GPT-2 assigned them."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + index) for index, byte in enumerate(others)}
