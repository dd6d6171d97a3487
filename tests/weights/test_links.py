"""Files of a checkpoint that are links, or no files at all: links lead to regular files, and nothing is waited for."""

import json
import os
import shutil
from pathlib import Path

import pytest

from archerfish import LLM
from archerfish.errors import CheckpointError, ModelError
from archerfish.weights.describe import describe
from tests.checkpoints import CONFIG, write_checkpoint

TEXTS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
TEXTS += ["special_tokens_map.json", "model.safetensors.index.json", "additional_chat_templates/tools.jinja"]
EVERY = [*TEXTS, "model.safetensors"]
pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "good")


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    """A copy to be broken."""
    return Path(shutil.copytree(good, tmp_path / "model"))


def load(directory: Path) -> LLM:
    return LLM(str(directory), threads=1, max_num_seqs=2)


def place(model: Path, name: str) -> Path:
    """Where a file of this name belongs, with nothing there."""
    path = model / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    return path


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("is_link", [False, True], ids=["itself", "linked"])
def test_a_pipe_is_refused_without_waiting_for_it(model: Path, tmp_path: Path, name: str, is_link: bool) -> None:
    path = place(model, name)
    os.mkfifo(tmp_path / "pipe" if is_link else path)
    if is_link:
        path.symlink_to(tmp_path / "pipe")
    with pytest.raises(
        ModelError, match=f"{path.name} cannot be read .it is a pipe.: make it a regular file, or a link to one"
    ):
        load(model)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_refused(model: Path, name: str, device: str) -> None:
    place(model, name).symlink_to(device)
    with pytest.raises(ModelError, match=r"it is a device\): make it a regular file"):
        load(model)


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="this system has no /proc")
@pytest.mark.parametrize("made_up", ["/proc/kmsg", "/proc/self/environ", "/proc/self/mem"])
def test_what_the_kernel_makes_up_is_not_read(model: Path, made_up: str) -> None:
    place(model, "config.json").symlink_to(made_up)
    with pytest.raises(ModelError, match=r"config\.json (is not valid JSON|cannot be read)"):
        load(model)


def test_describing_a_model_waits_for_no_pipe_either(model: Path) -> None:
    os.mkfifo(place(model, "model.safetensors"))
    problem = describe(model).problem
    assert problem is not None and "is a pipe" in problem


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"])
def test_no_error_repeats_the_text_of_a_linked_file(model: Path, tmp_path: Path, name: str) -> None:
    secret = tmp_path / "passwd"
    for text in ("swordfish:x:0:0\n", '"swordfish"', '["swordfish"]', '{"swordfish": "swordfish"}'):
        secret.write_text(text)
        place(model, name).symlink_to(secret)
        if text.startswith("{") and name == "generation_config.json":
            continue  # An object without any field that is needed.
        with pytest.raises(ModelError) as caught:
            load(model)
        assert "swordfish" not in str(caught.value)


def test_links_to_files_elsewhere_are_followed(good: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    for file in good.iterdir():
        (linked / file.name).symlink_to(file)
    load(linked)


def test_so_are_those_of_the_hubs_cache(good: Path, tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abc"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(good.iterdir())):
        shutil.copy(file, blobs / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    load(snapshot)


def test_links_to_nothing_or_to_themselves(model: Path) -> None:
    place(model, "config.json").symlink_to(model / "nowhere.json")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(model)
    place(model, "config.json").symlink_to(model / "config.json")
    with pytest.raises(ModelError, match=r"config\.json cannot be read"):
        load(model)
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(CONFIG))
    place(model, "model.safetensors").symlink_to(model / "nowhere.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors \(0 bytes\) is not a whole safetensors file"):
        load(model)


@pytest.mark.parametrize("name", ["../model/model.safetensors", "{}/model.safetensors"])
def test_an_index_that_names_files_elsewhere(model: Path, name: str) -> None:
    index = {"weight_map": {"model.embed_tokens.weight": name.format(model)}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="names files outside of"):
        load(model)


def test_a_text_file_that_is_far_too_large(model: Path) -> None:
    with (model / "config.json").open("wb") as file:
        file.write(json.dumps(CONFIG).encode())
        file.truncate(1 << 40)
    with pytest.raises(ModelError, match=f"config.json has {1 << 40} bytes"):
        load(model)
