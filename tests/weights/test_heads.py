"""Draft heads in every layout they are published in: read, filled, written again; and errors are named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from archerfish.arch import Arch, EagleSpec, MedusaSpec, NormSpec, RopeSpec
from archerfish.errors import CheckpointError, ModelNotFound, UnsupportedModel
from archerfish.models.eagle import Eagle
from archerfish.models.layers import Embedding
from archerfish.models.medusa import Medusa
from archerfish.weights.heads import choose_tokens, load_head, read_head, save_head
from tests.models.heads import EAGLE, LAYER, LENGTH, MEDUSA, OPS, eagle, medusa, target_head

TARGET = Arch(family="llama", vocab_size=61, hidden_size=32, layers=(LAYER,) * 8, norm=NormSpec(), max_positions=128)
LLAMA_LAYER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
AUTHORS: dict[str, Any] = {
    **LLAMA_LAYER,
    "architectures": ["LlamaForCausalLMEagle3"],
    "attention_bias": False,
    "bos_token_id": 1,
    "draft_vocab_size": 23,
    "pretraining_tp": 1,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.46.2",
}
SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3Speculator"],
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "draft_vocab_size": 23,
    "eagle_aux_hidden_state_layer_ids": [1, 3, 8],
    "embed_requires_grad": False,
    "has_no_defaults_at_init": False,
    "norm_before_residual": True,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "somebody/model"},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.1.0",
    "target_hidden_size": None,
    "transformer_layer_config": LLAMA_LAYER,
}
OLD_MEDUSA: dict[str, Any] = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 3,
    "medusa_num_layers": 2,
    "transformers_version": "4.31.0",
}
TOKENS = torch.tensor([0, 2, 3, 5, 8, 60, *range(20, 37)])


def numbers(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {name.replace("__", "."): torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def eagle_tensors(layer: str = "midlayer") -> dict[str, Tensor]:
    """As they are published: inputs of the first projections are the token's embedding and then the state."""
    found = numbers(
        fc__weight=(32, 96),
        norm__weight=(32,),
        lm_head__weight=(23, 32),
        L__input_layernorm__weight=(32,),
        L__hidden_norm__weight=(32,),
        L__post_attention_layernorm__weight=(32,),
        L__self_attn__q_proj__weight=(64, 64),
        L__self_attn__k_proj__weight=(32, 64),
        L__self_attn__v_proj__weight=(32, 64),
        L__self_attn__o_proj__weight=(32, 64),
        L__mlp__gate_proj__weight=(48, 32),
        L__mlp__up_proj__weight=(48, 32),
        L__mlp__down_proj__weight=(32, 48),
    )
    named = {name.replace("L.", f"{layer}.", 1): tensor for name, tensor in found.items()}
    drafted = torch.zeros(61, dtype=torch.bool)
    drafted[TOKENS] = True
    return {**named, "d2t": TOKENS - torch.arange(23), "t2d": drafted}


def medusa_tensors() -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for head in range(3):
        layers = numbers(a=(32, 32), b=(32,), c=(32, 32), d=(32,), e=(61, 32))
        names = ("0.linear.weight", "0.linear.bias", "1.linear.weight", "1.linear.bias", "2.weight")
        found |= {f"{head}.{name}": tensor + head for name, tensor in zip(names, layers.values(), strict=True)}
    return found


def write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str = "model.safetensors") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        torch.save(tensors, directory / file)
    return directory


def loaded_eagle(directory: Path) -> Eagle:
    spec = read_head(directory, TARGET)
    assert isinstance(spec, EagleSpec)
    head = Eagle(spec, None if spec.has_embedding else Embedding(61, 32, OPS), OPS, LENGTH)
    load_head(head, directory)
    return head


def loaded_medusa(directory: Path) -> Medusa:
    spec = read_head(directory, TARGET)
    assert isinstance(spec, MedusaSpec)
    head = Medusa(spec, None if spec.has_own_head else target_head(), OPS)
    load_head(head, directory)
    return head


def check_eagle(head: Eagle, tensors: dict[str, Tensor], layer: str) -> None:
    """Everything at its place, and nothing but that."""
    found = dict(head.named_parameters())
    attention = [tensors[f"{layer}.self_attn.{name}_proj.weight"] for name in "qkv"]
    wanted = {
        "joining.weight": tensors["fc.weight"],
        "norm.weight": tensors["norm.weight"],
        "head.weight": tensors["lm_head.weight"],
        "layer.token_norm.weight": tensors[f"{layer}.input_layernorm.weight"],
        "layer.state_norm.weight": tensors[f"{layer}.hidden_norm.weight"],
        "layer.mlp_norm.weight": tensors[f"{layer}.post_attention_layernorm.weight"],
        "layer.attention.qkv.weight": torch.cat([one[:, :32] for one in attention]),
        "layer.state_qkv.weight": torch.cat([one[:, 32:] for one in attention]),
        "layer.attention.output.weight": tensors[f"{layer}.self_attn.o_proj.weight"],
        "layer.mlp.up.weight": torch.cat([tensors[f"{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up")]),
        "layer.mlp.down.weight": tensors[f"{layer}.mlp.down_proj.weight"],
    }
    if head.embedding is not None:
        wanted["embedding.weight"] = tensors["embed_tokens.weight"]
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor.float()), name
    assert head.target_ids is not None and torch.equal(head.target_ids, TOKENS)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_eagle_as_its_authors_publish_it(tmp_path: Path, file: str) -> None:
    tensors = eagle_tensors()
    half = {name: one.half() if one.is_floating_point() else one for name, one in tensors.items()}
    directory = write(tmp_path, AUTHORS, half, file)
    assert read_head(directory, TARGET) == replace(EAGLE, target_layers=(2, 4, 5))
    check_eagle(loaded_eagle(directory), half, "midlayer")


def test_eagle_as_speculators_publish_it(tmp_path: Path) -> None:
    tensors = {**eagle_tensors("layers.0"), **numbers(embed_tokens__weight=(61, 32), verifier_norm__weight=(32,))}
    directory = write(tmp_path, SPECULATORS, tensors)
    wanted = replace(EAGLE, target_layers=(1, 3, 8), norm_before_residual=True, has_embedding=True)
    assert read_head(directory, TARGET) == wanted
    check_eagle(loaded_eagle(directory), tensors, "layers.0")


def test_what_transformers_leaves_out_of_a_layer_is_as_in_a_llama(tmp_path: Path) -> None:
    layer = {"model_type": "llama", "num_hidden_layers": 1, "num_key_value_heads": 8}
    target = replace(TARGET, vocab_size=32000, hidden_size=4096)
    spec = read_head(write(tmp_path, {**SPECULATORS, "transformer_layer_config": layer}, eagle_tensors()), target)
    assert isinstance(spec, EagleSpec)
    assert (spec.hidden_size, spec.target_vocab_size, spec.max_positions) == (4096, 32000, 2048)
    assert (spec.layer.attention.num_heads, spec.layer.attention.head_dim) == (32, 128)


def test_depths_may_be_named_by_the_layers_that_give_them(tmp_path: Path) -> None:
    inner = {"eagle_aux_hidden_state_layer_ids": [1, 3, 7], "use_aux_hidden_state": True}
    spec = read_head(write(tmp_path, {**AUTHORS, "eagle_config": inner}, eagle_tensors()), TARGET)
    assert isinstance(spec, EagleSpec) and spec.target_layers == (2, 4, 8)


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_medusa_as_its_authors_publish_it(tmp_path: Path, file: str) -> None:
    tensors = medusa_tensors()
    directory = write(tmp_path, OLD_MEDUSA, tensors, file)
    assert read_head(directory, TARGET) == MEDUSA
    found = dict(loaded_medusa(directory).named_parameters())
    assert len(found) == len(tensors)
    for head in range(3):
        for layer in range(2):
            for field in ("weight", "bias"):
                wanted = tensors[f"{head}.{layer}.linear.{field}"]
                assert torch.equal(found[f"heads.{head}.layers.{layer}.{field}"], wanted)
        assert torch.equal(found[f"outputs.{head}.weight"], tensors[f"{head}.2.weight"])


# -- writing ----------------------------------------------------------------------------------------------------------

ROPES = {
    "llama3": RopeSpec(
        theta=5e5,
        dim=16,
        kind="llama3",
        factor=8.0,
        original_max_positions=64,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    ),
    "linear": RopeSpec(theta=1e4, dim=16, kind="linear", factor=2.0),
    "yarn": RopeSpec(theta=1e4, dim=16, kind="yarn", factor=4.0, original_max_positions=32, attention_factor=1.1),
    "longrope": RopeSpec(
        theta=1e4,
        dim=4,
        kind="longrope",
        factor=4.0,
        original_max_positions=32,
        short_factor=(1.0, 1.5),
        long_factor=(2.0, 3.0),
    ),
    "in part": RopeSpec(theta=1e4, dim=8),
}
EAGLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "own table, narrower": {"has_embedding": True, "hidden_size": 16, "norm_before_residual": True},
    "all tokens, two depths": {"vocab_size": 61, "target_layers": (0, 8)},
    "biases": {
        "layer": replace(
            LAYER,
            attention=replace(LAYER.attention, qkv_bias=True, output_bias=True),
            feed_forward=replace(LAYER.feed_forward, activation="gelu_tanh", bias=True),
        )
    },
    **{
        f"rope {name}": {"layer": replace(LAYER, attention=replace(LAYER.attention, rope=rope))}
        for name, rope in ROPES.items()
    },
}


def same(found: Eagle | Medusa, wanted: Eagle | Medusa) -> None:
    mine, others = dict(found.named_parameters()), dict(wanted.named_parameters())
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in others)
    assert (found.target_ids is None) == (wanted.target_ids is None)
    assert wanted.target_ids is None or (
        found.target_ids is not None and torch.equal(found.target_ids, wanted.target_ids)
    )


@pytest.mark.parametrize("kind", EAGLES)
def test_an_eagle_that_was_saved_is_the_same(tmp_path: Path, kind: str) -> None:
    head = eagle(**EAGLES[kind])
    if head.target_ids is not None:
        choose_tokens(head, TOKENS)
    save_head(head, tmp_path / "new" / "head", "somebody/model", {"tokens": 7})
    assert read_head(tmp_path / "new" / "head", TARGET) == head.spec
    same(loaded_eagle(tmp_path / "new" / "head"), head)


def test_an_eagle_is_saved_as_its_authors_publish_it(tmp_path: Path) -> None:
    tensors = eagle_tensors()
    save_head(loaded_eagle(write(tmp_path / "one", AUTHORS, tensors)), tmp_path / "other", "base", {"why": "a test"})
    again = load_file(tmp_path / "other" / "model.safetensors")
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensors[name]) and again[name].dtype == tensors[name].dtype for name in tensors)
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    assert config["base_model_name_or_path"] == "base" and config["about"] == {"why": "a test"}
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["draft_vocab_size"] == 23


@pytest.mark.parametrize("num_tokens", [61, 23])
@pytest.mark.parametrize("is_own", [True, False], ids=["own matrices", "the target's"])
def test_a_medusa_that_was_saved_is_the_same(tmp_path: Path, num_tokens: int, is_own: bool) -> None:
    head = medusa(None if is_own else target_head(), vocab_size=num_tokens)
    if num_tokens < 61:
        choose_tokens(head, TOKENS)
    save_head(head, tmp_path, "somebody/model", {})
    assert read_head(tmp_path, TARGET) == head.spec
    same(loaded_medusa(tmp_path), head)
    stored = load_file(tmp_path / "medusa_lm_head.safetensors")
    assert ("0.2.weight" in stored) == is_own and ("token_map" in stored) == (num_tokens < 61)


def test_a_head_without_memory_is_handed_on_part_by_part(tmp_path: Path) -> None:
    saved = medusa(target := target_head(bias=True), vocab_size=23)
    choose_tokens(saved, TOKENS)
    save_head(saved, tmp_path, "somebody/model", {})
    with torch.device("meta"):
        head = Medusa(saved.spec, target, OPS)
    loaded: dict[str, Tensor] = {}
    load_head(head, tmp_path, loaded.__setitem__)
    wanted = dict(saved.named_parameters())
    assert loaded.keys() == wanted.keys() and all(torch.equal(loaded[name], wanted[name]) for name in wanted)
    assert torch.equal(loaded["rows.linear.weight"], target.weight[TOKENS])
    assert torch.equal(loaded["rows.linear.bias"], target.bias[TOKENS])
    assert head.target_ids is not None and torch.equal(head.target_ids, TOKENS)


# -- what is wrong ----------------------------------------------------------------------------------------------------

BAD_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({**AUTHORS, "surprise": 1}, "surprise; if they do not .* take them out of the file"),
    ({**AUTHORS, "norm_before_fc": True}, "norm_before_fc = True"),
    ({**AUTHORS, "fc_norm": True}, "fc_norm = True"),
    ({**AUTHORS, "use_sliding_window": True}, "use_sliding_window = True"),
    ({**AUTHORS, "num_hidden_layers": 2}, "num_hidden_layers = 2 .* must be 1"),
    ({**AUTHORS, "tie_word_embeddings": True}, "tie_word_embeddings = true"),
    ({**AUTHORS, "model_type": "qwen3"}, "'qwen3'; EAGLE-3's is one of a llama"),
    ({**AUTHORS, "draft_vocab_size": 62}, "draft_vocab_size = 62 is more than the target's 61"),
    ({**AUTHORS, "vocab_size": 62}, "for a model of 62 tokens, but the target has 61"),
    ({**AUTHORS, "target_hidden_size": 48}, "no table of embeddings .* 48 numbers .* takes 32"),
    ({**AUTHORS, "eagle_aux_hidden_state_layer_ids": [1, 9]}, "layers 1, 9, but the target has 8"),
    ({**AUTHORS, "eagle_aux_hidden_state_layer_ids": "all"}, "eagle_aux_hidden_state_layer_ids = 'all'"),
    ({**AUTHORS, "eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = False"),
    ({**AUTHORS, "eagle_config": {"odd": 1}}, "odd"),
    ({**AUTHORS, "quantization_config": {}}, "quantization_config"),
    ({**SPECULATORS, "speculators_model_type": "eagle"}, "'eagle'; of speculators' heads EAGLE-3 is supported"),
    ({**SPECULATORS, "speculators_config": {"algorithm": "eagle"}}, "algorithm = 'eagle'"),
    ({**SPECULATORS, "norm_before_residual": None}, "lacks the field 'norm_before_residual'"),
    ({**SPECULATORS, "transformer_layer_config": None}, "lacks the field 'transformer_layer_config'"),
    ({**SPECULATORS, "transformer_layer_config": {**LLAMA_LAYER, "odd": 1}}, "odd"),
    ({**OLD_MEDUSA, "odd": 1}, "odd"),
    ({**OLD_MEDUSA, "hidden_size": 48}, "for a model of 48 numbers in a state, but the target has 32"),
    ({**OLD_MEDUSA, "medusa_num_heads": 0}, "medusa_num_heads = 0"),
]


@pytest.mark.parametrize(("config", "message"), BAD_CONFIGS, ids=[message for _, message in BAD_CONFIGS])
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    write(tmp_path, config, eagle_tensors())
    with pytest.raises(UnsupportedModel, match=f"the head in {tmp_path} cannot be used: .*{message}"):
        read_head(tmp_path, TARGET)


def test_a_target_too_small_for_the_usual_depths_is_refused(tmp_path: Path) -> None:
    write(tmp_path, AUTHORS, eagle_tensors())
    with pytest.raises(UnsupportedModel, match="layers 2, 1, -1, but the target has 2"):
        read_head(tmp_path, replace(TARGET, layers=(LAYER,) * 2))


def test_the_first_two_eagles_are_refused(tmp_path: Path) -> None:
    config = {name: value for name, value in AUTHORS.items() if name != "draft_vocab_size"}
    write(tmp_path, config, numbers(fc__weight=(32, 64), layers__0__self_attn__q_proj__weight=(64, 32)))
    with pytest.raises(UnsupportedModel, match=r"EAGLE-1 or EAGLE-2 .* only EAGLE-3 is supported"):
        read_head(tmp_path, TARGET)


def test_a_model_is_no_head(tmp_path: Path) -> None:
    write(tmp_path, LLAMA_LAYER, numbers(lm_head__weight=(61, 32)))
    with pytest.raises(UnsupportedModel, match="no head of Medusa and none of EAGLE-3"):
        read_head(tmp_path, TARGET)
    with pytest.raises(ModelNotFound, match=r"has no config\.json"):
        read_head(tmp_path / "nowhere", TARGET)


def load_changed(directory: Path, **changes: Tensor | None) -> None:
    tensors = {**eagle_tensors(), **{name.replace("__", "."): tensor for name, tensor in changes.items()}}
    write(directory, AUTHORS, {name: tensor for name, tensor in tensors.items() if tensor is not None})
    loaded_eagle(directory)


BAD_TENSORS: list[tuple[dict[str, Tensor | None], str]] = [
    ({"lm_head__weight": None}, r"1 missing: lm_head\.weight"),
    ({"midlayer__self_attn__q_proj__bias": torch.zeros(64)}, r"1 unexpected: midlayer\.self_attn\.q_proj\.bias"),
    ({"fc__weight": torch.zeros(32, 64)}, r"fc\.weight is \[32, 64\], where \[32, 96\] belongs"),
    ({"midlayer__self_attn__k_proj__weight": torch.zeros(32, 32)}, r"k_proj\.weight is \[32, 32\]"),
    ({"fc__weight": torch.zeros(32, 96, dtype=torch.int8)}, r"fc\.weight is stored as torch\.int8"),
    ({"d2t": None}, "lacks the tensor d2t"),
    ({"d2t": torch.zeros(22, dtype=torch.int64)}, r"d2t is \[22\]"),
    ({"d2t": torch.zeros(23)}, r"d2t is \[23\] of torch\.float32"),
    ({"d2t": torch.full((23,), 39)}, "d2t does not name 23 different tokens of 61"),
    ({"d2t": -torch.arange(23)}, "d2t does not name 23 different tokens of 61"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_TENSORS, ids=[message for _, message in BAD_TENSORS])
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Tensor | None], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_changed(tmp_path, **changes)


def test_other_ids_for_all_tokens_are_refused(tmp_path: Path) -> None:
    tensors = {**eagle_tensors(), **numbers(lm_head__weight=(61, 32)), "d2t": torch.zeros(61, dtype=torch.int64)}
    config = {**AUTHORS, "draft_vocab_size": 61}
    assert loaded_eagle(write(tmp_path, config, tensors)).target_ids is None
    tensors["d2t"][:2] = torch.tensor([1, -1])
    with pytest.raises(CheckpointError, match="d2t gives other ids"):
        loaded_eagle(write(tmp_path, config, tensors))


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    (tmp_path / "config.json").write_text(json.dumps(OLD_MEDUSA))
    torch.save({"0.0.linear.weight": Trap(sprung)}, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt is not a file of nothing but tensors"):
        loaded_medusa(tmp_path)
    assert not sprung.exists()
    torch.save([torch.zeros(1)], tmp_path / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt does not hold tensors by their names"):
        loaded_medusa(tmp_path)
    (tmp_path / "medusa_lm_head.pt").write_bytes(b"torn")
    with pytest.raises(CheckpointError, match=r"medusa_lm_head\.pt is not a file"):
        loaded_medusa(tmp_path)
