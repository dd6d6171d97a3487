"""What a trained model writes, asked through the engine: texts it goes on with, messages it answers.

python -m recipes.box.samples --model DIR --out FILE.json

Samples have the name of the model's directory; those of other models in the file are kept.
"""

import argparse
import json
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from archerfish import LLM, SamplingParams
from recipes.box.chat import ASSISTANT, END, USER
from recipes.box.skills import answer_texts

BEGINNINGS = ("Once upon a time", "April is", "The sun")
MESSAGES = (
    "Hello!",
    "What is April?",
    "What is a volcano?",
    "The fox ran into the forest. The hunter sat down under an old oak and waited. In the evening the fox came back."
    "\n\nQuestion: Where did the hunter sit down?",
    "Write this again, but change Tom to Ben:\nTom had a dog. Every day Tom took it to the park. Tom was happy.",
)
TEMPERATURES = (0.0, 0.8)
SEED = 0
MOST_TOKENS = 96

_LABEL = 9  # Columns.
_WRAP = textwrap.TextWrapper(120 - _LABEL, break_long_words=False, break_on_hyphens=False)

Sample = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="recipes.box.samples", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="directory of the exported model")
    parser.add_argument("--out", type=Path, required=True, help="file the samples are added to")
    options = parser.parse_args()
    name = options.model.resolve().name
    with LLM(options.model) as llm:
        samples = write_samples(llm, name)
    known = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else []
    samples = [*(sample for sample in known if sample["model"] != name), *samples]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(samples, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_samples(llm: LLM, name: str) -> list[Sample]:
    """Return the answer to each prompt, as the model saw it, at each temperature."""
    conversations = [[{"role": "user", "content": message}] for message in MESSAGES]
    samples = []
    for temperature in TEMPERATURES:
        params = SamplingParams(temperature=temperature, seed=SEED, max_tokens=MOST_TOKENS)
        outputs = llm.generate(BEGINNINGS, params) + llm.chat(conversations, params)
        samples += [
            {"model": name, "prompt": output.prompt, "temperature": temperature, "seed": SEED, "text": text}
            for output, text in zip(outputs, answer_texts(outputs), strict=True)
        ]
    return samples


def show_samples(samples: Iterable[Sample]) -> list[str]:
    """Return Markdown with a block for each prompt: the text or message, and the model's answers."""
    by_prompt: dict[str, list[Sample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample["prompt"], []).append(sample)
    return [_block(prompt, answers) for prompt, answers in by_prompt.items()]


def _block(prompt: str, answers: Iterable[Sample]) -> str:
    """Return a code block with fences that the text cannot end."""
    said = prompt.removeprefix(USER).removesuffix(END + ASSISTANT)
    parts = {"user" if prompt.startswith(USER) else "text": said}
    for answer in answers:
        parts[f"T = {answer['temperature']}" if answer["temperature"] else "greedy"] = answer["text"]
    text = "\n\n".join(_labelled(label, part) for label, part in parts.items())
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"


def _labelled(label: str, text: str) -> str:
    """Return lines with the label on the left, and the text in a column of its own."""
    lines = [line for paragraph in text.strip().split("\n") for line in _WRAP.wrap(paragraph) or [""]]
    return (label.ljust(_LABEL) + textwrap.indent("\n".join(lines), " " * _LABEL)[_LABEL:]).rstrip()


if __name__ == "__main__":
    main()
