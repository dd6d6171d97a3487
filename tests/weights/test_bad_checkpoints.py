"""Checkpoints and configs that are broken in every way we could think of: a named error, before anything is served."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from archerfish import LLM
from archerfish.errors import CheckpointError, ModelError, ModelNotFound, TokenizerError, UnsupportedModel
from tests.checkpoints import CONFIG, tensors, write_checkpoint


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("model") / "good")


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    """A copy to be broken."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def load(directory: Path) -> LLM:
    return LLM(str(directory), threads=1, max_num_seqs=2)


def change_config(directory: Path, **changes: object) -> None:
    (directory / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def change_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    named = tensors()
    change(named)
    save_file(named, directory / "model.safetensors")


def test_the_good_one_loads(model: Path) -> None:
    load(model)


def test_there_is_no_such_place(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="nowhere"):
        load(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match="not in the hub cache"):
        LLM("somebody/some-model")
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModelNotFound, match="is a file"):
        load(file)
    with pytest.raises(ModelNotFound, match=r"config\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": "llama",', "not valid JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[1, 2]", r"config\.json must hold a JSON object, not a list"),
        (b"[" * 100_000, "not valid JSON"),
        (b"{}", "no model_type"),
        (b'{"model_type": 7}', "no model_type"),
        (b'{"model_type": "mamba"}', "'mamba' is not supported; supported are .*llama"),
    ],
)
def test_a_config_that_is_none(model: Path, content: bytes, message: str) -> None:
    (model / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load(model)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_temperature_tuning": True}, "attention_temperature_tuning"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"hidden_size": "many"}, "hidden_size"),
        ({"hidden_size": -32}, "hidden_size"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": 5}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2}}, "spiral"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "twist": 1}}, "twist"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "quantized"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_that_are_not_understood_are_named(model: Path, changes: dict[str, object], named: str) -> None:
    change_config(model, **changes)
    with pytest.raises(UnsupportedModel, match=named):
        load(model)


def test_an_override_can_remove_a_field(model: Path) -> None:
    change_config(model, some_vendor_note="hello")
    with pytest.raises(UnsupportedModel, match=r"--hf-overrides '\{\"some_vendor_note\": null\}'"):
        load(model)
    LLM(str(model), threads=1, max_num_seqs=2, hf_overrides={"some_vendor_note": None})


def test_weights_cut_short(model: Path) -> None:
    file = model / "model.safetensors"
    whole = file.read_bytes()
    for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load(model)


def test_weights_that_are_something_else(model: Path) -> None:
    file = model / "model.safetensors"
    for content in (b"PK\x03\x04" + b"\0" * 200, b"GGUF" + b"\0" * 200, struct.pack("<Q", 2**62) + b"{}", b"\0" * 64):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load(model)


def test_no_weights_at_all(model: Path) -> None:
    (model / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        load(model)
    (model / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*pickled"):
        load(model)


def test_tensors_missing_unexpected_and_of_the_wrong_shape(model: Path) -> None:
    name = "model.layers.1.self_attn.k_proj.weight"
    change_weights(model, lambda named: named.pop(name))
    with pytest.raises(CheckpointError, match=f"1 missing: {name}"):
        load(model)
    change_weights(model, lambda named: named.update({"model.layers.9.mlp.up_proj.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"1 unexpected: model\.layers\.9"):
        load(model)
    change_weights(model, lambda named: named.update({name: torch.zeros(16, 31)}))
    with pytest.raises(CheckpointError, match=rf"{name} is \[16, 31\], where \[16, 32\] belongs"):
        load(model)
    change_weights(model, lambda named: named.update({name: torch.zeros(16, 32, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match="I8"):
        load(model)


def test_a_config_of_another_model(model: Path) -> None:
    change_config(model, num_hidden_layers=3)
    with pytest.raises(CheckpointError, match=r"9 missing: model\.layers\.2"):
        load(model)
    change_config(model, vocab_size=400)
    with pytest.raises(CheckpointError, match=r"model\.embed_tokens\.weight is \[300, 32\], where \[400, 32\]"):
        load(model)
    change_config(model, model_type="qwen2")
    with pytest.raises(CheckpointError, match=r"q_proj\.bias|k_proj\.bias"):
        load(model)


def test_shards_that_do_not_match_their_index(model: Path) -> None:
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}))
    with pytest.raises(CheckpointError, match="model-00001-of-00002"):
        load(model)
    index.write_text(json.dumps({"weights": {}}))
    with pytest.raises(CheckpointError, match="weight_map"):
        load(model)
    index.write_text("{")
    with pytest.raises(ModelError, match="not valid JSON"):
        load(model)


def test_mistrals_own_layout_next_to_the_usual_one_is_left_alone(model: Path) -> None:
    save_file({"layers.0.attention.wq.weight": torch.zeros(2)}, model / "consolidated.safetensors")
    save_file({"layers.1.attention.wq.weight": torch.zeros(2)}, model / "consolidated-00002-of-00002.safetensors")
    shutil.move(model / "model.safetensors", model / "model-00001-of-00001.safetensors")
    load(model)
    (model / "model-00001-of-00001.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"It has consolidated.*safetensors, Mistral's own layout"):
        load(model)


def test_one_tensor_in_two_files(model: Path) -> None:
    save_file({"lm_head.weight": torch.zeros(300, 32)}, model / "extra.safetensors")
    shutil.move(model / "model.safetensors", model / "part.safetensors")
    with pytest.raises(CheckpointError, match=r"both hold lm_head\.weight"):
        load(model)


def test_tokenizers_that_are_none(model: Path) -> None:
    for content in (b"{", b"\xff\xfe", b"{}", b'{"model": 3}'):
        (model / "tokenizer.json").write_bytes(content)
        with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
            load(model)
    (model / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load(model)
    LLM(str(model), threads=1, max_num_seqs=2, skip_tokenizer_init=True)


def test_an_end_token_that_is_none_is_shown_within_a_bound(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    change_config(tmp_path, eos_token_id="x" * 10_000)
    with pytest.raises(ModelError, match="must be a token id or a list of them") as caught:
        LLM(str(tmp_path), threads=1, max_num_seqs=2)
    assert len(str(caught.value)) < 1_000


def test_dummy_weights_need_only_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    first = LLM(str(tmp_path), load_format="dummy", threads=1, max_num_seqs=2).generate([5, 6, 7])
    second = LLM(str(tmp_path), load_format="dummy", threads=1, max_num_seqs=2).generate([5, 6, 7])
    assert first[0].outputs[0].token_ids == second[0].outputs[0].token_ids
    with pytest.raises(TokenizerError, match="token ids"):
        LLM(str(tmp_path), load_format="dummy", threads=1, max_num_seqs=2).generate("text")
