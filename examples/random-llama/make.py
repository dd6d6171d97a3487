"""Writes the files of a tiny Llama with random weights, and a tokenizer trained on the few lines below."""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
VOCAB_SIZE = 512
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

TEXT = """
The archerfish hunts from below. It waits under the leaves that hang over the water, looks up at a fly or a spider,
and shoots it down with a jet of drops. Light bends where water meets air, so the fish never sees its prey where it is;
it learns to aim a little beside what it sees. A young fish misses often. An old one hits at the first shot, and swims
to the place where the insect will fall before it has fallen. Once upon a time there was a river, and on the river there
was a boat, and in the boat sat a girl who counted the drops. How far can it shoot? Farther than you would think, she
said, and it always knows how much water it needs: more for a large beetle, less for a small one, and none to waste.
""".strip()

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
        "torch_dtype": "float32",
    }


def tokenizer() -> Tokenizer:
    """Byte-level, so that every text can be encoded; the rest of the vocabulary is what TEXT is made of."""
    byte_level = Tokenizer(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    byte_level.train_from_iterator([TEXT], trainer)
    assert byte_level.get_vocab_size() == VOCAB_SIZE
    return byte_level


def main() -> None:
    files = {
        "config.json": config(),
        "generation_config.json": {"eos_token_id": [0, 2], "do_sample": True, "temperature": 0.8, "top_p": 0.95},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "additional_special_tokens": ["<|im_start|>"],
            "model_max_length": 2048,
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (HERE / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer().save(str(HERE / "tokenizer.json"), pretty=False)


if __name__ == "__main__":
    main()
