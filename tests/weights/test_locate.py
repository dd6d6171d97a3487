"""A name is a directory, else a model in the box, else on the hub: through its cache, revisions included."""

import json
from pathlib import Path

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects

from archerfish import LLM
from archerfish.errors import ModelNotFound
from archerfish.weights.locate import locate
from tests.checkpoints import write_checkpoint


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds one model, as huggingface_hub lays it out."""
    torch.set_num_threads(1)
    repository = tmp_path / "models--somebody--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    write_checkpoint(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return repository / "snapshots" / commit


def test_a_hub_name_is_found_in_the_cache(hub: Path) -> None:
    assert locate("somebody/tiny") == hub
    assert locate("somebody/tiny", hub.name) == hub
    output = LLM("somebody/tiny", threads=1, max_num_seqs=2).generate("Hello")[0]
    assert len(output.outputs[0].token_ids) > 0


def test_what_is_not_in_the_cache_is_said_to_be_so(hub: Path) -> None:
    assert hub.exists()
    with pytest.raises(ModelNotFound, match="not in the hub cache"):
        locate("somebody/else")
    with pytest.raises(ModelNotFound):
        locate("somebody/tiny", "no-such-branch")
    with pytest.raises(ModelNotFound, match="not a hub name"):
        locate("a/b/c/d")


def test_a_directory_wins_over_a_hub_name(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.exists()
    local = tmp_path / "work" / "somebody" / "tiny"
    local.mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    assert locate("somebody/tiny") == Path("somebody/tiny")


FILES = [
    "README.md",
    "additional_chat_templates/tools.jinja",
    "chat_template.jinja",
    "config.json",
    "consolidated-00001-of-00002.safetensors",
    "consolidated.safetensors",
    "fp16/config.json",
    "fp16/model.safetensors",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "onnx/decoder/model.safetensors",
    "original/consolidated.00.pth",
    "tokenizer.json",
    "tokenizer.model",
]
SMALL = [
    "additional_chat_templates/tools.jinja",
    "chat_template.jinja",
    "config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer.model",
]


def test_weights_are_downloaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    downloaded: list[str] = []

    def snapshot_download(_: str, revision: str | None, local_files_only: bool, **patterns: list[str]) -> str:
        assert revision is None and local_files_only, "tests run offline"
        downloaded[:] = filter_repo_objects(FILES, **patterns)
        return "somewhere"

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert locate("somebody/some-model") == Path("somewhere")
    assert downloaded == sorted([*SMALL, "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"])
    locate("somebody/some-model", weights=False)
    assert downloaded == SMALL


@pytest.mark.parametrize("model", ["a" * 300, "~nobody-of-this-name/model"])
def test_a_name_that_cannot_be_looked_at_is_not_found(model: str) -> None:
    with pytest.raises(ModelNotFound, match=f"^{model} cannot be looked at: "):
        locate(model)


def test_a_directory_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no revision 'v2'"):
        locate(str(tmp_path), "v2")


@pytest.fixture
def perch(box: Path) -> Path:
    for name in ("minnow", "perch"):
        (box / name).mkdir()
        (box / name / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return box / "perch"


def _refuse_download(*_: object, **__: object) -> str:
    raise AssertionError("the hub was queried for a model that was there")


def test_the_box_comes_before_the_hub(perch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.snapshot_download", _refuse_download)
    assert locate("perch") == locate("perch", weights=False) == perch
    assert locate("minnow") == perch.parent / "minnow"


def test_a_directory_comes_before_the_box(perch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "perch").mkdir(parents=True)
    (tmp_path / "work" / "minnow").write_text("a file is no model")
    monkeypatch.chdir(tmp_path / "work")
    assert locate("perch") == Path("perch")
    assert locate("minnow") == perch.parent / "minnow"
    assert locate(None) == perch, "the directory of that name was not requested"


@pytest.mark.parametrize("model", [None, "perch"])
def test_a_model_in_the_box_has_no_revisions(perch: Path, model: str | None) -> None:
    assert perch.exists()
    with pytest.raises(ModelNotFound, match="perch comes with the package, which has no revision 'v2' of it"):
        locate(model, "v2")


@pytest.mark.parametrize("model", ["pearch", "somebody/else", "/no/such/directory", "./perch"])
def test_an_unknown_name_is_answered_with_what_the_box_has(perch: Path, model: str) -> None:
    assert perch.exists()
    with pytest.raises(ModelNotFound, match=f"there is no directory {model}.*; the box has perch, minnow$"):
        locate(model)


def test_an_empty_box_is_not_offered(box: Path) -> None:
    assert box.exists()
    with pytest.raises(ModelNotFound, match=r"not in the hub cache.*give a local directory$"):
        locate("perch")
    with pytest.raises(ModelNotFound, match="the default, perch, is missing from this installation"):
        locate(None)
