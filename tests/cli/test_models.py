"""`archerfish models`: what is in the box and in the hub cache, and what is wrong with it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from archerfish.config.numbers import format_bytes
from tests.checkpoints import CONFIG, write_checkpoint
from tests.cli.running import archerfish

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    directory = write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, box: Path) -> Path:
    """A hub cache with nothing in it, beside an empty box."""
    assert box.exists()
    root = tmp_path / "hub"
    root.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))
    return root


def add(cache: Path, name: str, files: Mapping[str, bytes], *, ref: str | None = "main", commit: str = COMMIT) -> Path:
    """A repository as huggingface_hub lays it out: contents in blobs, names in snapshots. The snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for directory in (repository / "blobs", repository / "refs", snapshot):
        directory.mkdir(parents=True, exist_ok=True)
    if ref is not None:
        (repository / "refs" / ref).write_text(commit)
    for file, content in files.items():
        blob = f"{commit[:4]}-{file}"
        (repository / "blobs" / blob).write_bytes(content)
        (snapshot / file).symlink_to(Path("..", "..", "blobs", blob))
    return snapshot


def listed() -> dict[str, Any]:
    result = archerfish("models", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def problem(name: str) -> str:
    """As the list has it, in few words: --json has more."""
    [model] = [one for one in listed()["models"] if one["name"] == name]
    [text] = [line for line in archerfish("models").stdout.splitlines() if line.startswith(f"{name}: ")]
    short = text.removeprefix(f"{name}: ")
    assert model["problem"] is not None and model["directory"] not in short
    return short


def test_the_box_comes_first_then_the_hub_cache_by_name(box: Path, cache: Path, files: dict[str, bytes]) -> None:
    write_checkpoint(box / "minnow")
    write_checkpoint(box / "perch")
    add(cache, "somebody/tiny", files)
    snapshot = add(cache, "anybody/tiny", files)
    found = listed()
    names = [(model["name"], model["location"]) for model in found["models"]]
    cached = [("anybody/tiny", "cache"), ("somebody/tiny", "cache")]
    assert names == [("perch", "box"), ("minnow", "box"), *cached]
    num_bytes = sum(len(content) for content in files.values())
    facts = {"family": "llama", "num_parameters": 37792, "dtype": "float32", "context_length": 256, "problem": None}
    assert found["models"][2] == {
        "name": "anybody/tiny",
        "location": "cache",
        "directory": str(snapshot),
        "num_bytes": num_bytes,
        **facts,
    }
    assert found["models"][0].items() >= {**facts, "num_bytes": num_bytes}.items()
    assert found["hub_cache"] == str(cache) and found["hub_cache_problem"] is None


def test_words_show_the_same(box: Path, cache: Path, files: dict[str, bytes]) -> None:
    name = "a-rather-long-organisation/a-rather-long-model-name-that-must-not-be-cut-3.1-70B-Instruct"
    write_checkpoint(box / "perch")
    add(cache, name, files)
    result = archerfish("models")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    size = format_bytes(sum(map(len, files.values()))).split()
    facts = ["llama", "37.8K", "float32", *size, "256"]
    assert rows == [
        "name where family parameters dtype on disk context".split(),
        ["perch", "box", *facts],
        [name, "cache", *facts],
    ]
    assert len({len(line) for line in result.stdout.splitlines()}) == 1, "columns stand in line"


def test_nothing_is_not_an_error(cache: Path) -> None:
    nothing: dict[str, Any] = {"models": [], "hub_cache": str(cache), "hub_cache_problem": None}
    assert listed() == nothing
    assert archerfish("models").stdout == f"There are no bundled models, and none in the hub cache, {cache}.\n"
    cache.rmdir()
    assert listed() == nothing


def test_only_models_are_listed(cache: Path, files: dict[str, bytes]) -> None:
    add(cache, "somebody/tiny", files)
    (cache / "datasets--somebody--letters" / "snapshots").mkdir(parents=True)
    (cache / ".locks").mkdir()
    (cache / "version.txt").write_text("1")
    assert [model["name"] for model in listed()["models"]] == ["somebody/tiny"]


@pytest.mark.parametrize("lost", ["config.json", "model.safetensors"])
def test_a_model_that_lost_a_file_is_still_listed(cache: Path, files: dict[str, bytes], lost: str) -> None:
    snapshot = add(cache, "somebody/tiny", files)
    (snapshot / lost).resolve().unlink()
    assert lost in problem("somebody/tiny")
    [model] = listed()["models"]
    assert model["num_bytes"] == sum(len(content) for name, content in files.items() if name != lost)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("part", [".", "refs", "snapshots", "blobs"])
def test_what_may_not_be_read_does_not_hide_the_rest(cache: Path, files: dict[str, bytes], part: str) -> None:
    add(cache, "somebody/tiny", files)
    closed = add(cache, "anybody/tiny", files).parent.parent / part
    closed.chmod(0)
    try:
        assert "cannot be read (Permission denied)" in problem("anybody/tiny")
        assert listed()["models"][1]["problem"] is None
    finally:
        closed.chmod(0o700)


def test_a_cache_that_cannot_be_read_leaves_the_box(
    box: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache.exists()
    write_checkpoint(box / "perch")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "file"))
    found = listed()
    assert [model["name"] for model in found["models"]] == ["perch"]
    assert found["hub_cache_problem"] == "Not a directory"
    says = f"the hub cache, {tmp_path / 'file'}, cannot be read: Not a directory\n"
    assert archerfish("models").stdout.endswith(says)


def test_what_was_downloaded_in_part_says_so(cache: Path, files: dict[str, bytes]) -> None:
    small = {name: content for name, content in files.items() if not name.endswith(".safetensors")}
    index = json.dumps(
        {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    )
    shard = files["model.safetensors"]
    add(cache, "somebody/small", small)
    add(
        cache,
        "somebody/half",
        {**small, "model.safetensors.index.json": index.encode(), "model-00001-of-00002.safetensors": shard},
    )
    add(cache, "somebody/torn", {**files, "model.safetensors": shard[:1000]})
    add(cache, "somebody/nothing", {})
    (cache / "models--somebody--none" / "snapshots").mkdir(parents=True)
    assert "has no .safetensors files: download or copy them" in problem("somebody/small")
    assert "does not have (model-00002-of-00002.safetensors): download or copy them" in problem("somebody/half")
    assert "model.safetensors (1000 bytes) is not a whole safetensors file" in problem("somebody/torn")
    assert problem("somebody/nothing") == "it has no config.json"
    assert problem("somebody/none") == "nothing of it has been downloaded"
    [known] = [model for model in listed()["models"] if model["name"] == "somebody/small"]
    assert (known["family"], known["num_parameters"], known["context_length"]) == ("llama", None, 256)


@pytest.mark.parametrize(
    ("config", "family", "says"),
    [
        ({"model_type": "mamba"}, "mamba", "model type 'mamba' is not supported"),
        ({**CONFIG, "mystery": 1}, "llama", "fields that are not understood for this model type: mystery"),
        ({**CONFIG, "quantization_config": {"bits": 4}}, "llama", "quantization_config: quantized checkpoints"),
        ({"architectures": ["Stranger"]}, None, "no model_type"),
        ({"model_type": ["llama"]}, None, "no model_type"),
    ],
)
def test_what_cannot_run_has_its_reason_next_to_what_is_known(
    cache: Path, files: dict[str, bytes], config: dict[str, Any], family: str | None, says: str
) -> None:
    add(cache, "somebody/strange", {**files, "config.json": json.dumps(config).encode()})
    assert says in problem("somebody/strange")
    [model] = listed()["models"]
    assert (model["family"], model["num_parameters"], model["context_length"]) == (family, 37792, None)


def test_gguf_files_are_said_not_to_be_read(cache: Path) -> None:
    add(cache, "somebody/tiny-GGUF", {"tiny-Q4_K_M.gguf": b"GGUF"})
    assert problem("somebody/tiny-GGUF") == "it has no config.json (its GGUF files are not read)"


def test_main_is_what_a_name_means(cache: Path, files: dict[str, bytes]) -> None:
    main = add(cache, "somebody/tiny", files)
    add(cache, "somebody/tiny", {"config.json": b"{}"}, ref="draft", commit=OTHER_COMMIT)
    add(cache, "somebody/pinned", files, ref=None, commit=OTHER_COMMIT)
    pinned, tiny = listed()["models"]
    assert tiny["directory"] == str(main) and tiny["problem"] is None
    assert tiny["num_bytes"] == sum(map(len, files.values())) + 2, "every revision takes room"
    assert pinned["num_parameters"] == 37792
    assert problem("somebody/pinned") == f"its main revision is not in the cache: add --revision {OTHER_COMMIT}"


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME"])
def test_it_finds_the_cache_by_the_environment_and_imports_no_torch(
    tmp_path: Path, files: dict[str, bytes], variable: str
) -> None:
    add(tmp_path / "hub", "somebody/tiny", files)
    environ = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_CACHE", "HF_HOME")}
    environ[variable] = str(tmp_path / "hub" if variable == "HF_HUB_CACHE" else tmp_path)
    script = (
        "import json, sys; from archerfish.cli.main import run; code = run(['models']); "
        "print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environ)
    exit_code, modules = json.loads(done.stderr)
    assert exit_code == 0 and "37.8K" in done.stdout.decode()
    assert not {"torch", "tokenizers", "archerfish.engine"} & set(modules)
