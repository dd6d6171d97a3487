"""Draft models with the target's vocabulary: created, trained and saved as a Llama."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from archerfish.compress.drafters.options import DrafterOptions
from archerfish.compress.drafters.target import TargetReading, read_rows
from archerfish.config.settings import EngineConfig
from archerfish.engine.build import Blueprint, examine
from archerfish.engine.models import load_decoder
from archerfish.errors import ConfigError
from archerfish.models.decoder import Decoder
from archerfish.models.families import Fields, find_family
from archerfish.ops import KernelTarget, choose_ops
from archerfish.weights.locate import locate, read_config

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
_NAMED_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_ROUND = 32
"""Computed feed-forward widths are multiples of it, because kernels have tiles for those."""


class DraftModelTraining:
    """A draft model in training. All depths are alike: it reads earlier draft tokens like any text."""

    taps: tuple[int, ...] = ()
    trained_depths = 1
    target_ids = None

    def __init__(self, decoder: Decoder, config: Mapping[str, Any], tokenizer_directory: Path) -> None:
        self.module = decoder
        self._config = config
        self._tokenizer_directory = tokenizer_directory

    def states(self, reading: TargetReading, num_depths: int) -> list[Tensor]:
        states = read_rows(self.module, reading.tokens)
        return [states[:, depth + 1 :] for depth in range(num_depths)]

    def logits(self, depth: int, states: Tensor) -> Tensor:
        del depth
        return self.module.logits(states)

    def save(self, directory: Path, about: Mapping[str, Any]) -> None:
        parameters = dict(self.module.named_parameters())
        tensors = {}
        for placement in find_family(self._config).placements(self.module.arch):
            tensor = parameters[placement.target].detach()
            tensor = tensor if placement.rows is None else tensor[placement.rows]
            tensors[placement.source] = tensor.to("cpu", torch.bfloat16).contiguous().clone()
        notes = {"format": "pt", "archerfish": json.dumps(about)}
        save_file(tensors, directory / "model.safetensors", metadata=notes)
        named = {name: value for name, value in self._config.items() if name != "dtype"}
        text = json.dumps({**named, "torch_dtype": "bfloat16"}, indent=2) + "\n"
        (directory / "config.json").write_text(text, encoding="utf-8")
        for name in _TOKENIZER_FILES:
            if (self._tokenizer_directory / name).is_file():
                shutil.copyfile(self._tokenizer_directory / name, directory / name)


def draft_model(blueprint: Blueprint, config: EngineConfig, options: DrafterOptions) -> DraftModelTraining:
    """Return a new draft model, or the one to start from, ready to be trained on the target's device."""
    if options.start is None:
        config_json = _new_config(blueprint, config, options)
        decoder = _new_decoder(config_json, blueprint, options)
    else:
        config_json = read_config(locate(options.start), {})
        decoder = _started(config, options.start, options.length)
        _check_start(decoder, config_json, blueprint, options.start)
    decoder.requires_grad_(True)
    return DraftModelTraining(decoder, config_json, blueprint.directory)


def _started(config: EngineConfig, start: str, length: int) -> Decoder:
    own = EngineConfig(model=start, dtype="float32", device=config.device, threads=config.threads)
    longest = examine(own).config.max_model_len
    if length > longest:
        raise ConfigError(f"--length {length} is more than the context of --start {start}: make it {longest} or less")
    return load_decoder(own)


def _check_start(decoder: Decoder, config_json: Mapping[str, Any], blueprint: Blueprint, start: str) -> None:
    target_size, draft_size = blueprint.arch.vocab_size, decoder.arch.vocab_size
    if target_size != draft_size:
        raise ConfigError(
            f"--start {start} has a vocabulary of {draft_size} tokens, and the target {target_size}: "
            "give a model of the same vocabulary"
        )
    placements = find_family(config_json).placements(decoder.arch)
    if any(placement.transform is not None or placement.expert is not None for placement in placements):
        raise ConfigError(f"--start {start} is a {decoder.arch.family}, which cannot be saved: give a Llama")


def _new_config(blueprint: Blueprint, config: EngineConfig, options: DrafterOptions) -> dict[str, Any]:
    """Return the config of a Llama, in the target's proportions where options do not decide."""
    arch = blueprint.arch
    spec = arch.layers[0].attention
    hidden = options.hidden_size or _rounded(arch.hidden_size / 2, spec.head_dim)
    if hidden % spec.head_dim:
        raise ConfigError(
            f"--hidden-size {hidden} must be a multiple of {spec.head_dim}, the size of the model's heads"
        )
    num_heads = hidden // spec.head_dim
    named = read_config(blueprint.directory, config.hf_overrides)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": arch.vocab_size,
        "hidden_size": hidden,
        "intermediate_size": options.intermediate_size or _rounded(hidden * 8 / 3, _ROUND),
        "num_hidden_layers": options.layers or 2,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_heads if num_heads % spec.num_kv_heads else min(num_heads, spec.num_kv_heads),
        "head_dim": spec.head_dim,
        "max_position_embeddings": blueprint.config.max_model_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0 if spec.rope is None else spec.rope.theta,
        "tie_word_embeddings": True,
        **{name: named[name] for name in _NAMED_TOKENS if named.get(name) is not None},
    }


def _rounded(width: float, step: int) -> int:
    return max(step, round(width / step) * step)


def _new_decoder(config_json: Mapping[str, Any], blueprint: Blueprint, options: DrafterOptions) -> Decoder:
    """Return a model with small normal weights, smaller in the projections that add to the residual stream."""
    arch = find_family(config_json).read(Fields(config_json))
    device = blueprint.config.device
    ops = choose_ops(KernelTarget(device=device, dtype="float32")).ops
    decoder = Decoder(arch, ops, arch.max_positions)
    # Drawn on the host, whose numbers are the same everywhere.
    generator = torch.Generator().manual_seed(options.seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if parameter.dim() < 2:
                parameter.fill_(1.0)
                continue
            spread = 0.02 if name == "embedding.weight" else parameter.shape[1] ** -0.5
            if name.endswith(("output.weight", "down.weight")):
                spread *= (2 * len(arch.layers)) ** -0.5
            parameter.normal_(0.0, spread, generator=generator)
    return decoder.to(device)
