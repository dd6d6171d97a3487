"""Loads and saves draft heads in their published formats."""

import json
import pickle
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from archerfish.arch.arch import Arch, MlpSpec
from archerfish.arch.heads import EagleSpec, MedusaSpec
from archerfish.errors import CheckpointError, UnsupportedModel
from archerfish.models.eagle import Eagle
from archerfish.models.families.family import Placement
from archerfish.models.medusa import Medusa
from archerfish.weights.checkpoint import SafetensorsCheckpoint
from archerfish.weights.head_configs import eagle_config, medusa_config, read_eagle, read_medusa
from archerfish.weights.load import StoreParameter, check_names, check_shapes, fill
from archerfish.weights.locate import read_json

# speculators number the layers, where EAGLE-3's authors have a name for the only one.
_RENAMES = ((r"^layers\.0\.", "midlayer."), (r"^medusa_heads\.", ""))
_PICKLES = ("medusa_lm_head.pt", "pytorch_model.bin")
_OFFSETS, _TOKENS, _TABLE = "d2t", "token_map", "embed_tokens.weight"
# t2d repeats which tokens d2t names; the verifier's matrices are copies that training needed.
_IGNORED = ("t2d", r"(.*\.)?rotary_emb\.inv_freq", r"verifier_(lm_head|norm)\.weight")


def read_head(directory: Path, target: Arch) -> EagleSpec | MedusaSpec:
    """Return the spec of the head in a directory, or raise a ModelError if it is damaged or does not fit the target."""
    config = read_json(directory / "config.json")
    spec: EagleSpec | MedusaSpec
    try:
        if "medusa_num_heads" in config:
            spec = read_medusa(config, target)
            width = spec.hidden_size
        else:
            spec = _read_eagle(directory, config, target)
            width = spec.target_hidden_size
        for what, expected, actual in (
            ("tokens", spec.target_vocab_size, target.vocab_size),
            ("numbers in a state", width, target.hidden_size),
        ):
            if expected != actual:
                raise UnsupportedModel(f"it is for a model of {expected} {what}, but the target has {actual}")
    except UnsupportedModel as error:
        raise UnsupportedModel(f"the head in {directory} cannot be used: {error}") from error
    return spec


def load_head(head: Eagle | Medusa, directory: Path, store: StoreParameter | None = None, device: str = "cpu") -> None:
    """Fill every parameter and the draft vocabulary, or raise a CheckpointError that names what is wrong.

    As with a decoder, a head without memory of its own needs `store`. The target's weights must be loaded already.
    """
    tensors = _read_tensors(directory)
    tokens = _target_ids(head.spec, directory, tensors)
    placements = list(_placements(head.spec))
    check_names(directory, placements, set(tensors) - {_tokens_name(head.spec)}, _IGNORED)
    for placement in placements:
        if not tensors[placement.source].is_floating_point():
            raise CheckpointError(
                f"{directory}: {placement.source} is stored as {tensors[placement.source].dtype}; "
                f"quantized heads are not supported: use the original one"
            )
    parameters = dict(head.named_parameters())
    check_shapes(directory, placements, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, parameters)
    fill(parameters, placements, tensors.__getitem__, store=store, device=device)
    if tokens is not None:
        choose_tokens(head, tokens.to(device), store, device)


def choose_tokens(
    head: Eagle | Medusa, target_ids: Tensor, store: StoreParameter | None = None, device: str = "cpu"
) -> None:
    """Set the draft vocabulary. Where the target's output head is shared, its rows are copied."""
    assert head.target_ids is not None, "the draft vocabulary is the target's"
    head.target_ids.copy_(target_ids)
    if isinstance(head, Medusa) and head.rows is not None:
        rows = head.rows.parameters_of(target_ids)
        placements = [Placement(name, f"rows.linear.{name}") for name in rows]
        fill(dict(head.named_parameters()), placements, rows.__getitem__, store=store, device=device)


def save_head(head: Eagle | Medusa, directory: Path, base: str, about: Mapping[str, Any]) -> None:
    """Write the head in its published format: `base` names the target, `about` is for people to read."""
    directory.mkdir(parents=True, exist_ok=True)
    parameters = dict(head.named_parameters())
    parts: dict[str, list[Tensor]] = {}
    for placement in _placements(head.spec):
        parameter = parameters[placement.target].detach()
        parts.setdefault(placement.source, []).append(
            parameter if placement.rows is None else parameter[placement.rows]
        )
    # Only matrices are in parts: the columns of one tensor in the file.
    tensors = {name: (some[0] if len(some) == 1 else torch.cat(some, dim=1)) for name, some in parts.items()}
    tensors |= _written_tokens(head)
    if isinstance(head.spec, EagleSpec):
        config, file = eagle_config(head.spec), directory / "model.safetensors"
    else:
        config, file = medusa_config(head.spec), directory / "medusa_lm_head.safetensors"
    config["torch_dtype"] = str(next(iter(parameters.values())).dtype).removeprefix("torch.")
    config |= {"base_model_name_or_path": base, "about": dict(about)}
    # Copies, because saved tensors must not share memory.
    save_file({name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}, file)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _read_eagle(directory: Path, config: Mapping[str, Any], target: Arch) -> EagleSpec:
    tensors = _read_tensors(directory)
    if "fc.weight" in tensors and "norm.weight" not in tensors:
        raise UnsupportedModel(
            "it is one of EAGLE-1 or EAGLE-2 (its fc joins a token with one state, and it has no norm of its own), "
            "and only EAGLE-3 is supported; use a head of that, or train one"
        )
    if "speculators_model_type" not in config and "fc.weight" not in tensors:
        raise UnsupportedModel(
            "it has neither medusa_num_heads in its config.json nor a tensor fc.weight, "
            "so it is no head of Medusa and none of EAGLE-3"
        )
    return read_eagle(config, len(target.layers), has_embedding=_TABLE in tensors)


def _read_tensors(directory: Path) -> dict[str, Tensor]:
    """Read tensors by their published names. Views of the files' pages: unused ones are never read."""
    file = next((directory / name for name in _PICKLES if (directory / name).is_file()), None)
    if file is None or any(directory.glob("*.safetensors")):
        with SafetensorsCheckpoint(directory, _RENAMES) as checkpoint:
            return {name: checkpoint.read(name) for name in checkpoint.tensors}
    try:
        # Tensors only: a pickle could run any code.
        tensors = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError, EOFError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{file} is not a file of nothing but tensors: {reason}") from error
    if not isinstance(tensors, dict) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise CheckpointError(f"{file} does not hold tensors by their names")
    for pattern, replacement in _RENAMES:
        tensors = {re.sub(pattern, replacement, name): tensor for name, tensor in tensors.items()}
    return tensors


# -- which tokens -----------------------------------------------------------------------------------------------------


def _tokens_name(spec: EagleSpec | MedusaSpec) -> str:
    return _OFFSETS if isinstance(spec, EagleSpec) else _TOKENS


def _target_ids(spec: EagleSpec | MedusaSpec, directory: Path, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """Return the target's ids of the draft vocabulary; None where it is the target's whole vocabulary."""
    name, is_all = _tokens_name(spec), spec.vocab_size == spec.target_vocab_size
    stored = tensors.get(name)
    if stored is None:
        if is_all:
            return None
        raise CheckpointError(
            f"{directory} lacks the tensor {name}, which names the {spec.vocab_size} tokens of its draft vocabulary"
        )
    if stored.shape != (spec.vocab_size,) or stored.is_floating_point():
        raise CheckpointError(
            f"{directory}: {name} is {list(stored.shape)} of {stored.dtype}, where {spec.vocab_size} integers belong"
        )
    own = torch.arange(spec.vocab_size)
    ids = own + stored if isinstance(spec, EagleSpec) else stored.long()
    if is_all:
        if not torch.equal(ids, own):
            raise CheckpointError(f"{directory}: {name} gives other ids to all of the target's tokens")
        return None
    if len(set(ids.tolist())) != len(ids) or ids.min() < 0 or ids.max() >= spec.target_vocab_size:
        raise CheckpointError(
            f"{directory}: {name} does not name {spec.vocab_size} different tokens of {spec.target_vocab_size}"
        )
    return ids


def _written_tokens(head: Eagle | Medusa) -> dict[str, Tensor]:
    spec = head.spec
    own = torch.arange(spec.vocab_size)
    ids = own if head.target_ids is None else head.target_ids.cpu()
    if isinstance(spec, MedusaSpec):
        return {} if head.target_ids is None else {_TOKENS: ids}
    in_draft_vocabulary = torch.zeros(spec.target_vocab_size, dtype=torch.bool)
    in_draft_vocabulary[ids] = True
    return {_OFFSETS: ids - own, "t2d": in_draft_vocabulary}


# -- where tensors go -------------------------------------------------------------------------------------------------


def _placements(spec: EagleSpec | MedusaSpec) -> Iterator[Placement]:
    """Where several placements share a source, they are its columns from left to right."""
    return _eagle_placements(spec) if isinstance(spec, EagleSpec) else _medusa_placements(spec)


def _eagle_placements(spec: EagleSpec) -> Iterator[Placement]:
    for name, ours in (("fc", "joining"), ("norm", "norm"), ("lm_head", "head")):
        yield Placement(f"{name}.weight", f"{ours}.weight")
    if spec.has_embedding:
        yield Placement(_TABLE, "embedding.weight")
    for name, ours in (
        ("input_layernorm", "token_norm"),
        ("hidden_norm", "state_norm"),
        ("post_attention_layernorm", "mlp_norm"),
    ):
        yield Placement(f"midlayer.{name}.weight", f"layer.{ours}.weight")
    yield from _attention_placements(spec)
    mlp = spec.layer.feed_forward
    assert isinstance(mlp, MlpSpec)
    for half, name in enumerate(("gate_proj", "up_proj")):
        yield from _linear(f"mlp.{name}", "mlp.up", mlp.bias, slice(half * mlp.size, (half + 1) * mlp.size))
    yield from _linear("mlp.down_proj", "mlp.down", mlp.bias)


def _attention_placements(spec: EagleSpec) -> Iterator[Placement]:
    attention, first = spec.layer.attention, 0
    token, state = (partial(_columns, half) for half in (slice(spec.hidden_size), slice(spec.hidden_size, None)))
    for name, width in (("q", attention.q_width), ("k", attention.kv_width), ("v", attention.kv_width)):
        rows, there = slice(first, first + width), f"midlayer.self_attn.{name}_proj."
        yield Placement(there + "weight", "layer.attention.qkv.weight", rows, transform=token)
        yield Placement(there + "weight", "layer.state_qkv.weight", rows, transform=state)
        if attention.qkv_bias:
            yield Placement(there + "bias", "layer.attention.qkv.bias", rows)
        first += width
    yield from _linear("self_attn.o_proj", "attention.output", attention.output_bias)


def _columns(which: slice, matrix: Tensor) -> Tensor:
    return matrix[:, which]


def _linear(name: str, ours: str, bias: bool, rows: slice | None = None) -> Iterator[Placement]:
    for field in ("weight", "bias") if bias else ("weight",):
        yield Placement(f"midlayer.{name}.{field}", f"layer.{ours}.{field}", rows)


def _medusa_placements(spec: MedusaSpec) -> Iterator[Placement]:
    for head in range(spec.num_heads):
        for layer in range(spec.num_layers):
            for field in ("weight", "bias"):
                yield Placement(f"{head}.{layer}.linear.{field}", f"heads.{head}.layers.{layer}.{field}")
        if spec.has_own_head:
            yield Placement(f"{head}.{spec.num_layers}.weight", f"outputs.{head}.weight")
