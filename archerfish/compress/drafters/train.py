"""Trains a drafter, from options to checkpoint and card. The only module that combines its parts."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from archerfish.compress.drafters.batches import Batches
from archerfish.compress.drafters.card import DrafterFacts, write_card
from archerfish.compress.drafters.draft_model import draft_model
from archerfish.compress.drafters.drafter import Drafter
from archerfish.compress.drafters.eagle import eagle_drafter
from archerfish.compress.drafters.measure import Score, measure
from archerfish.compress.drafters.medusa import medusa_drafter
from archerfish.compress.drafters.options import DrafterOptions
from archerfish.compress.drafters.samples import Samples, write_samples
from archerfish.compress.drafters.state import State
from archerfish.compress.drafters.target import DraftingTarget
from archerfish.compress.drafters.training import Clock, Training
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Blueprint, examine
from archerfish.engine.models import load_decoder
from archerfish.errors import ConfigError
from archerfish.models.decoder import Decoder
from archerfish.ops import KernelTarget, choose_ops


@dataclass(frozen=True, slots=True)
class Trained:
    directory: Path
    score: Score


def train_drafter(config: EngineConfig, options: DrafterOptions, clock: Clock = time.monotonic) -> Trained | None:
    """Train a drafter. Returns None if it was stopped early: called again with the same options, it resumes."""
    started = clock()
    blueprint = examine(config)
    _check(blueprint, options)
    device = blueprint.config.device
    state = State(config, options)
    samples = state.samples(lambda: write_samples(config, options, device))
    # In float32, steps on a CPU are reproducible bit for bit; on a GPU the checkpoint's own format suffices.
    decoder = load_decoder(replace(config, dtype="auto" if device == "cuda" else "float32"))
    drafter = _drafter(decoder, blueprint, samples, config, options)
    target = DraftingTarget(decoder, drafter.taps)
    batches = Batches(samples, options.batch, options.seed, device)
    training = Training(drafter, target, batches, options, clock)
    if not training.run(state, started):
        return None
    _round(drafter)
    score = measure(drafter, target, batches.held_out(), options.depths)
    num_parameters = sum(parameter.numel() for parameter in drafter.module.parameters() if parameter.requires_grad)
    assert training.num_steps is not None
    facts = DrafterFacts(
        target=_name(config, blueprint),
        num_parameters=num_parameters,
        num_training=samples.num_training,
        num_held_out=samples.num_held_out,
        num_tokens=samples.num_tokens,
        num_steps=training.num_steps,
        score=score,
    )
    drafter.save(state.directory, asdict(facts))
    (state.directory / "README.md").write_text(write_card(options, facts), encoding="utf-8")
    state.remove()
    return Trained(state.directory, score)


@torch.no_grad()
def _round(drafter: Drafter) -> None:
    """Round parameters to the format that they are saved in: what is measured is what is served."""
    for parameter in drafter.module.parameters():
        # Modules shared with the target are not saved.
        if parameter.requires_grad:
            parameter.copy_(parameter.bfloat16())


def _check(blueprint: Blueprint, options: DrafterOptions) -> None:
    longest, vocab_size = blueprint.config.max_model_len, blueprint.arch.vocab_size
    if options.length > longest:
        raise ConfigError(f"--length {options.length} is more than the model's context: make it {longest} or less")
    if options.vocabulary is not None and options.vocabulary > vocab_size:
        raise ConfigError(f"--vocabulary {options.vocabulary} is more than the model has: leave it out for all")


def _drafter(
    decoder: Decoder, blueprint: Blueprint, samples: Samples, config: EngineConfig, options: DrafterOptions
) -> Drafter:
    if options.method == "draft_model":
        return draft_model(blueprint, config, options)
    vocab_size = blueprint.arch.vocab_size
    has_all = options.vocabulary is None or options.vocabulary == vocab_size
    target_ids = None if has_all else samples.frequent(options.vocabulary or vocab_size, vocab_size)
    ops = choose_ops(KernelTarget(device=blueprint.config.device, dtype="float32")).ops
    make = eagle_drafter if options.method == "eagle" else medusa_drafter
    return make(decoder, target_ids, options, ops, _name(config, blueprint))


def _name(config: EngineConfig, blueprint: Blueprint) -> str:
    """Return the model's name, or its name as a bundled model."""
    return config.model or blueprint.directory.name
