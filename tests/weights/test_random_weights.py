"""Random weights: from a shape alone, the same every time, finite through any depth, no two rows alike."""

import json
from pathlib import Path

import pytest
import torch

from archerfish.config.settings import EngineConfig
from archerfish.engine.build import examine
from archerfish.engine.llm import LLM
from archerfish.engine.models import load_decoder
from archerfish.errors import ModelNotFound
from archerfish.models.decoder import Decoder
from archerfish.weights.load import _NOISE_LENGTH
from tests.checkpoints import CONFIG

_EXPERTS = {
    **CONFIG,
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 24,
    "sliding_window": None,
}


@pytest.fixture
def shape(tmp_path: Path) -> Path:
    file = tmp_path / "shape.json"
    file.write_text(json.dumps(CONFIG))
    return file


def config(model: Path, **more: object) -> EngineConfig:
    settings = {"load_format": "dummy", "device": "cpu", "threads": 1, **more}
    return EngineConfig(model=str(model), **settings)  # type: ignore[arg-type]


def decoder(model: Path, **more: object) -> Decoder:
    return load_decoder(config(model, **more))


def test_a_json_file_of_any_name_is_model_enough(shape: Path) -> None:
    assert examine(config(shape)).arch.hidden_size == CONFIG["hidden_size"]
    # Other files next to it are not read.
    (shape.parent / "tokenizer.json").write_text("not a tokenizer")
    (shape.parent / "generation_config.json").write_text("nor JSON")
    with LLM(shape, load_format="dummy", threads=1, max_num_seqs=2) as llm:
        assert llm.assembly.processor.tokenizer is None
        assert len(llm.generate([5, 6, 7], progress=False)[0].outputs[0].token_ids) == 16


def test_a_json_file_is_no_model_with_weights(shape: Path) -> None:
    with pytest.raises(ModelNotFound, match="is a file"):
        LLM(shape, threads=1)
    with pytest.raises(ModelNotFound, match="is a file"):
        LLM(shape, load_format="dummy", revision="main", threads=1)
    with pytest.raises(ModelNotFound, match=r"there is no directory .*missing\.json"):
        LLM(shape.parent / "missing.json", load_format="dummy", threads=1)


def test_a_seed_gives_the_same_weights_and_another_others(shape: Path) -> None:
    first, again, other = (dict(decoder(shape, seed=seed).named_parameters()) for seed in (1, 1, 2))
    for name, parameter in first.items():
        assert torch.equal(parameter, again[name])
        assert parameter.dim() == 1 or not torch.equal(parameter, other[name])


def test_matrices_are_scaled_by_their_inputs_and_differ(shape: Path) -> None:
    parameters = dict(decoder(shape).named_parameters())
    for name, parameter in parameters.items():
        if parameter.dim() > 1:
            assert parameter.std().item() == pytest.approx(parameter.shape[-1] ** -0.5, rel=0.1), name
            assert len(torch.unique(parameter, dim=0)) == len(parameter), name
    assert not torch.equal(parameters["layers.0.mlp.up.weight"], parameters["layers.1.mlp.up.weight"])


def test_a_matrix_larger_than_the_noise_is_filled_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "wide.json"
    file.write_text(json.dumps({**CONFIG, "vocab_size": 2 * _NOISE_LENGTH // 32 + 5}))
    table = decoder(file).embedding.weight
    assert table.numel() > 2 * _NOISE_LENGTH
    assert table[-1].std().item() == pytest.approx(32**-0.5, rel=0.5)
    flat = table.flatten()
    assert torch.equal(flat[:1000], flat[_NOISE_LENGTH : _NOISE_LENGTH + 1000])
    assert not torch.equal(table[0], table[1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_answers_stay_finite_in_deep_models_of_every_format(tmp_path: Path, dtype: str) -> None:
    file = tmp_path / "deep.json"
    file.write_text(json.dumps(_EXPERTS))
    with LLM(file, load_format="dummy", dtype=dtype, device="cpu", threads=1, max_num_seqs=2) as llm:
        answer = llm.generate(list(range(2, 40)), progress=False)[0].outputs[0]
    assert (answer.finish_reason, len(answer.token_ids)) == ("length", 16)
