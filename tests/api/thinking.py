"""Perch with tags of reasoning: two of its special tokens have other names. It knows no reasoning, and writes junk."""

from pathlib import Path

from archerfish.api.model import EmbeddingSizes, ServedModel, usual_reasoning_format, usual_tool_format
from archerfish.api.reasoning import ReasoningFormat
from archerfish.box import models_in_box
from archerfish.engine.input_processor import InputProcessor
from archerfish.tokenizer import Tokenizer

_MESSAGES = (
    "{%- for message in messages %}<|{{ message.role }}|>"
    "{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{%- endif %}"
    "{{ message.content }}<|end|>{%- endfor %}{%- if add_generation_prompt %}<|assistant|>"
)
QWEN = _MESSAGES + "{%- if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
"""Answers may begin with reasoning, unless that is switched off."""
DEEPSEEK = _MESSAGES + "<think>\n{%- endif %}"
"""Answers begin within reasoning."""
EFFORT = QWEN.replace("{%- for", "<|system|>{{ reasoning_effort }}<|end|>{%- for")


def thinking_perch(directory: Path, template: str = QWEN, *, special: bool = False) -> Path:
    """A checkpoint. `special`: its tags are special tokens, which texts leave out."""
    directory.mkdir(parents=True, exist_ok=True)
    box = Path(models_in_box()["perch"])
    for name in ("config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"):
        (directory / name).symlink_to(box / name)
    text = (box / "tokenizer.json").read_text()
    for token, tag in (("<|tool_call|>", "<think>"), ("<|tool_result|>", "</think>")):
        text = text.replace(token, tag)
        if not special:
            head, _, tail = text.partition(f'"{tag}"')
            text = head + f'"{tag}"' + tail.replace('"special": true', '"special": false', 1)
    (directory / "tokenizer.json").write_text(text)
    (directory / "chat_template.jinja").write_text(template)
    return directory


def thinking_model(
    directory: Path, template: str = QWEN, reasoning_format: ReasoningFormat | None = None, *, special: bool = False
) -> ServedModel:
    tokenizer = Tokenizer.load(thinking_perch(directory, template, special=special))
    processor = InputProcessor(tokenizer, tokenizer.vocab_size, 1024, lambda: 0.0)
    tool_format = usual_tool_format("llama", tokenizer)
    reasoning_format = reasoning_format or usual_reasoning_format(tokenizer)
    return ServedModel(("perch",), processor, {}, tool_format, reasoning_format, EmbeddingSizes(320))
