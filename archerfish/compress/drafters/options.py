"""Options of the training of a drafter. Knows no model and reads no file."""

from dataclasses import dataclass, fields
from typing import Literal

from archerfish.config.settings import flag_name
from archerfish.errors import ConfigError

Method = Literal["medusa", "eagle", "draft_model"]

DEFAULT_STEPS = 2000
_USED_BY: dict[str, tuple[Method, ...]] = {
    "vocabulary": ("medusa", "eagle"),
    "layers": ("medusa", "draft_model"),
    "hidden_size": ("draft_model",),
    "intermediate_size": ("eagle", "draft_model"),
    "start": ("draft_model",),
}
"""Options that only some methods use."""
_SHAPE = ("layers", "hidden_size", "intermediate_size")
_LEAST = {
    **dict.fromkeys(("depths", "batch", "steps", "max_steps", "layers", "hidden_size", "intermediate_size"), 1),
    "samples": 16,
    "length": 8,
    "vocabulary": 2,
    "seed": 0,
}
_MOST_DEPTHS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterOptions:
    """Options of the training, validated on creation."""

    method: Method
    """Kind of drafter: medusa, heads that predict several positions ahead from the model's last hidden state; eagle, \
an autoregressive layer over the model's hidden states (EAGLE-3); draft_model, a smaller Llama with the same \
vocabulary."""
    output: str
    """Directory to write to. It also holds checkpoints of the training: the same command resumes where it stopped."""
    prompts: str | None = None
    """File of prompts for the model to answer, one per line: texts, or in a .jsonl file objects with a prompt or \
messages. By default the model writes the openings itself."""
    samples: int = 4096
    """Number of texts that the model generates for training; a sixteenth is held out for evaluation."""
    length: int = 256
    """Maximum length of these texts in tokens, prompt included."""
    depths: int = 4
    """Draft length that is trained and evaluated: the number of Medusa heads, or of EAGLE's unrolled steps."""
    vocabulary: int | None = None
    """medusa, eagle: restrict draft tokens to the most frequent ones in the samples, this many; by default all."""
    layers: int | None = None
    """draft_model: layers of a new model, by default 2; medusa: blocks per head, by default 1."""
    hidden_size: int | None = None
    """draft_model: hidden size of a new model, by default half of the model's."""
    intermediate_size: int | None = None
    """eagle, draft_model: size of the feed-forward layer; by default the model's, or 8/3 of a draft model's hidden \
size."""
    start: str | None = None
    """draft_model: model to start from, named like a model, instead of a new one."""
    batch: int = 32
    """Texts per step."""
    steps: int | None = None
    """Number of training steps; by default 2000."""
    minutes: float | None = None
    """Instead of --steps: time budget in minutes, sample generation included; the number of steps is estimated from \
the first ones."""
    max_steps: int | None = None
    """Stop after this many steps; the same command resumes from there."""
    learning_rate: float = 1e-3
    """Peak learning rate; it warms up over the first steps and decays to zero."""
    divergence: float = 0.1
    """Weight of the Kullback-Leibler divergence in the loss, from 0 to 1; the rest is the share of rejected draft \
tokens. It falls from 1 to this value over the first quarter of the steps."""
    seed: int = 0
    """Seed of new weights, samples and their order."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value, users = getattr(self, field.name), _USED_BY.get(field.name)
            if users is not None and value is not None and self.method not in users:
                raise ConfigError(
                    f"{flag_name(field.name)} is for --method {' or '.join(users)}, not {self.method}: leave it out"
                )
            if field.name in _LEAST and value is not None and value < _LEAST[field.name]:
                raise ConfigError(f"{flag_name(field.name)} {value} must be at least {_LEAST[field.name]}")
        if self.start is not None and any(getattr(self, name) is not None for name in _SHAPE):
            raise ConfigError("--start has a shape of its own: leave out --layers, --hidden-size, --intermediate-size")
        if self.steps is not None and self.minutes is not None:
            raise ConfigError("--steps and --minutes exclude each other: give one of them")
        self._check_ranges()

    def _check_ranges(self) -> None:
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise ConfigError(f"--minutes {self.minutes} must be more than 0")
        if not 0 < self.learning_rate < 1:
            raise ConfigError(f"--learning-rate {self.learning_rate} must be between 0 and 1")
        if not 0 <= self.divergence <= 1:
            raise ConfigError(f"--divergence {self.divergence} must be from 0 to 1")
        if self.depths > _MOST_DEPTHS:
            raise ConfigError(f"--depths {self.depths} must be at most {_MOST_DEPTHS}")
        if self.length < self.depths + 4:
            raise ConfigError(f"--length {self.length} is too short for --depths {self.depths}: make it longer")
