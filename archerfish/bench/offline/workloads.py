"""Workloads for the engine alone: prompts as token ids, and numbers of tokens to generate. Knows no engine.

Everything is drawn from Python's own generator by seed, so that a workload is the same on every machine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from archerfish.errors import ConfigError

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """One request."""

    prompt: TokenIds
    num_tokens: int
    """Tokens to generate, regardless of stop tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineWorkload:
    """Requests that all arrive at once."""

    name: str
    jobs: tuple[OfflineJob, ...]
    temperature: float = 0.0

    @property
    def num_input_tokens(self) -> int:
        return sum(len(job.prompt) for job in self.jobs)

    @property
    def num_output_tokens(self) -> int:
        return sum(job.num_tokens for job in self.jobs)

    def check_fits(self, max_model_len: int, flags: str = "--input-len or --output-len") -> None:
        """Refuse a workload that the context would cut short, so that every run does the same work.

        `flags` set the lengths.
        """
        longest = max(len(job.prompt) + job.num_tokens for job in self.jobs)
        if longest > max_model_len:
            raise ConfigError(
                f"the workload has a request of {longest} tokens, prompt and answer together, but the context holds "
                f"{max_model_len}; make {flags} smaller, or take a model with a longer context"
            )


def random_workload(num_prompts: int, input_len: int, output_len: int, vocab_size: int, seed: int) -> OfflineWorkload:
    """Return prompts of one length without shared prefixes."""
    rng = Random(seed)
    jobs = (OfflineJob(_random_ids(rng, input_len, vocab_size), output_len) for _ in range(num_prompts))
    return OfflineWorkload(name="random", jobs=tuple(jobs))


def shared_prefix_workload(
    num_prompts: int, shared_len: int, own_len: int, output_len: int, vocab_size: int
) -> OfflineWorkload:
    """Return prompts with one shared prefix, as with a system prompt, and different ends."""
    rng = Random(0)
    shared = _random_ids(rng, shared_len, vocab_size)
    jobs = (OfflineJob(shared + _random_ids(rng, own_len, vocab_size), output_len) for _ in range(num_prompts))
    return OfflineWorkload(name="shared prefix", jobs=tuple(jobs))


def prompts_workload(prompts: Sequence[TokenIds], num_prompts: int, output_len: int) -> OfflineWorkload:
    """Return the first of the given prompts, from the start again if there are too few."""
    jobs = (OfflineJob(prompts[index % len(prompts)], output_len) for index in range(num_prompts))
    return OfflineWorkload(name="prompts", jobs=tuple(jobs))


_NANO_VLLM_REQUESTS = 256
_NANO_VLLM_LENGTHS = (100, 1024)
_NANO_VLLM_LARGEST_ID = 10_000


def nano_vllm_workload(vocab_size: int) -> OfflineWorkload:
    """Return the workload of nano-vllm's published throughput: 142,827 tokens in, 133,966 out.

    A generator draws one number after another, so the order is part of the workload: each prompt's length and then its
    tokens, and after all prompts the lengths of the outputs.
    """
    rng = Random(0)
    prompts = [
        tuple(rng.randint(0, _NANO_VLLM_LARGEST_ID) for _ in range(rng.randint(*_NANO_VLLM_LENGTHS)))
        for _ in range(_NANO_VLLM_REQUESTS)
    ]
    lengths = [rng.randint(*_NANO_VLLM_LENGTHS) for _ in range(_NANO_VLLM_REQUESTS)]
    # A smaller vocabulary changes tokens, but no length.
    jobs = (
        OfflineJob(tuple(token % vocab_size for token in prompt), length)
        for prompt, length in zip(prompts, lengths, strict=True)
    )
    return OfflineWorkload(name="nano-vllm", jobs=tuple(jobs), temperature=0.6)


def _random_ids(rng: Random, length: int, vocab_size: int) -> TokenIds:
    return tuple(rng.choices(range(vocab_size), k=length))
