"""Prompts from files: JSON in ShareGPT's format, JSONL of prompts or chats, and prompts for the bundled models."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from archerfish.bench.serve.datasets.options import DatasetOptions
from archerfish.bench.serve.datasets.sample import Sample, SampleMessage
from archerfish.bench.serve.datasets.words import Words
from archerfish.errors import ConfigError

_DEFAULT_OUTPUT = 256
# vLLM's limits on conversations: shorter ones measure nothing, longer ones exceed the context of many models.
_SHORTEST, _LONGEST_PROMPT, _LONGEST_TOTAL = 4, 1024, 2048
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant"}
_PROMPT_FIELDS = ("prompt", "question", "text")
_LENGTH_FIELDS = ("output_tokens", "max_tokens")

BOX_PROMPTS = (
    "Once upon a time there was a little fish who",
    "Tell me a story about a dog that was afraid of rain.",
    "The old man opened the door and saw",
    "What is the sun made of?",
    "Write a short story about two friends and a kite.",
    "A river is",
    "Why do birds fly south in winter?",
    "Tom had five apples and gave two to Anna. How many were left?",
    "The king said to his youngest daughter:",
    "Tell me about a film that you like.",
    "Paris is the capital of",
    "Lily and her brother went to the park. They found",
    "What music do you like to hear in the evening?",
    "I would like to book a table for two people, please.",
    "In the middle of the forest stood a small house, and in it lived",
    "What is a volcano?",
)


def box_prompts(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return beginnings and questions that the bundled models can answer."""
    order = np.random.default_rng(seed).permutation(num_samples) % len(BOX_PROMPTS)
    return [_sample(BOX_PROMPTS[index], options.output_len or _DEFAULT_OUTPUT, words) for index in order.tolist()]


def jsonl_prompts(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return prompts from objects with a prompt, a question, turns (the first is used) or messages, one per line."""
    del seed  # In the order of the file.
    path = needed_path(options)
    samples: list[Sample] = []
    for where, value in parsed_objects(path):
        lengths = [value[name] for name in _LENGTH_FIELDS if isinstance(value.get(name), int)]
        length = options.output_len or (lengths[0] if lengths else _DEFAULT_OUTPUT)
        samples.append(_sample(_prompt(value, where), length, words))
        if len(samples) == num_samples:
            break
    return _repeated(samples, num_samples, path)


def sharegpt(options: DatasetOptions, words: Words, num_samples: int, seed: int) -> list[Sample]:
    """Return the first question of each conversation, with the length of its first answer. In random order."""
    path = needed_path(options)
    conversations = _parse(read_text(path), str(path))
    if not isinstance(conversations, list):
        raise ConfigError(f"{path} must hold a JSON list of conversations")
    samples: list[Sample] = []
    for index in np.random.default_rng(seed).permutation(len(conversations)).tolist():
        turns = _turns(conversations[index], f"{path}, conversation {index}")
        if len(turns) < 2 or (turns[0].role, turns[1].role) != ("user", "assistant"):
            continue
        question, answer = turns[0].content, turns[1].content
        num_in, num_out = words.estimate(question), options.output_len or words.estimate(answer)
        if min(num_in, num_out) < _SHORTEST or num_in > _LONGEST_PROMPT or num_in + num_out > _LONGEST_TOTAL:
            continue
        samples.append(_sample(question, num_out, words))
        if len(samples) == num_samples:
            break
    return _repeated(samples, num_samples, path)


def _sample(prompt: str | tuple[SampleMessage, ...], num_output_tokens: int, words: Words) -> Sample:
    return Sample(
        prompt=prompt,
        num_prompt_tokens=words.count(prompt) if isinstance(prompt, str) else None,
        num_output_tokens=num_output_tokens,
        must_write_all=False,
        num_shared_tokens=None,
    )


def _prompt(value: dict[str, Any], where: str) -> str | tuple[SampleMessage, ...]:
    if isinstance(value.get("messages"), list):
        return _up_to_the_question(_turns(value["messages"], where), where)
    for name in _PROMPT_FIELDS:
        if isinstance(value.get(name), str) and value[name]:
            return str(value[name])
    turns = value.get("turns")
    if isinstance(turns, list) and turns and isinstance(turns[0], str):
        return turns[0]
    raise ConfigError(f"{where}: there is no text in prompt, question, text, turns or messages; it has {list(value)}")


def _up_to_the_question(messages: list[SampleMessage], where: str) -> tuple[SampleMessage, ...]:
    """Return the messages up to the user's last one, without the answer after it."""
    for end in range(len(messages), 0, -1):
        if messages[end - 1].role == "user":
            return tuple(messages[:end])
    raise ConfigError(f"{where}: none of its messages is a user's")


def _turns(value: Any, where: str) -> list[SampleMessage]:
    if isinstance(value, dict):
        value = value.get("conversations", value.get("messages"))
    if not isinstance(value, list):
        raise ConfigError(f"{where}: there is no list in conversations or messages")
    turns = []
    for turn in value:
        role = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        content = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
        if not isinstance(role, str) or not isinstance(content, str):
            raise ConfigError(f"{where}: a turn has no role (from) or no text (value, content)")
        turns.append(SampleMessage(_ROLES.get(role, role), content))
    return turns


def _repeated(samples: list[Sample], num_samples: int, path: Path) -> list[Sample]:
    """Return so many samples, from the start again if there are too few, so that a small file can make a long load."""
    if not samples:
        raise ConfigError(f"{path} has no prompt that can be sent")
    return [samples[index % len(samples)] for index in range(num_samples)]


def needed_path(options: DatasetOptions) -> Path:
    if options.dataset_path is None:
        raise ConfigError(f"--dataset-name {options.dataset_name} needs --dataset-path FILE")
    return Path(options.dataset_path)


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path: cannot read {path}: {error}") from error


def parsed_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSONL file, each with its location."""
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            value = _parse(line, where)
            if not isinstance(value, dict):
                raise ConfigError(f"{where} must be a JSON object")
            yield where, value


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
