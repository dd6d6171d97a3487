"""Finds a model's files: a local directory, a bundled model, a hub name through huggingface_hub and its cache."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from archerfish.box import DEFAULT_MODEL, models_in_box
from archerfish.errors import ModelNotFound
from archerfish.files import read_json_object

UNREAD_WEIGHTS = "consolidated*.safetensors"
"""Mistral's own layout of the same weights, which its repositories hold a second time."""

_WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
# The hub's * matches slashes too: without these, weights of other formats in subfolders would be downloaded.
_UNWANTED = [UNREAD_WEIGHTS, "*/*.safetensors", "*/*.json"]
_ONLY_TOKENIZER = ["*.json", "*.jinja", "tokenizer.model"]
_ONLY_CONFIG = ["config.json"]


def locate(model: str | None, revision: str | None = None, *, weights: bool = True) -> Path:
    """Return the directory that holds the model's files: a local one, else a bundled one, else the hub's.

    None is the default model. A hub model is downloaded, or only its small files if weights is False; HF_HOME,
    HF_HUB_OFFLINE and HF_TOKEN have their usual meaning.
    """
    return _locate(model, revision, _WANTED if weights else _ONLY_TOKENIZER)


def _locate(model: str | None, revision: str | None, patterns: list[str]) -> Path:
    if model is None:
        # Not by name: a local directory may have the same one.
        return _from_box(DEFAULT_MODEL, revision)
    try:
        directory = Path(model).expanduser()
        is_directory, is_file = directory.is_dir(), directory.is_file()
    except (OSError, RuntimeError) as error:  # No permission, a name too long, the ~ of an unknown user.
        raise ModelNotFound(f"{model} cannot be looked at: {error}") from error
    if is_directory:
        if revision is not None:
            raise ModelNotFound(f"{model} is a directory, which has no revision {revision!r}; leave --revision out")
        return directory
    if model in models_in_box():
        return _from_box(model, revision)
    if model.lower().endswith(".gguf"):
        raise ModelNotFound(
            f"{model}: GGUF files are not read; give the model that it was made from, as a hub name or a directory "
            f"with config.json and safetensors{_box_offer()}"
        )
    if is_file:
        raise ModelNotFound(f"{model} is a file; give the directory that holds it, with its config.json")
    if not _is_hub_name(model):
        raise ModelNotFound(
            f"there is no directory {model}, and it is not a hub name such as Qwen/Qwen3-0.6B{_box_offer()}"
        )
    return _download(model, revision, patterns)


def locate_config(model: str | None, revision: str | None = None, *, alone: bool = False) -> Path:
    """Return what `locate` returns, where nothing but config.json is needed: a JSON file of any name will do, too.

    With `alone`, nothing else is downloaded.
    """
    if model is not None and model.endswith(".json") and revision is None:
        with suppress(OSError, RuntimeError):  # `locate` reports what is wrong.
            file = Path(model).expanduser()
            if file.is_file():
                return file
    return _locate(model, revision, _ONLY_CONFIG if alone else _ONLY_TOKENIZER)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or raise a ModelError that names the file and what is wrong with it."""
    value = read_json_object(path)
    if value is None:
        instead = " (its GGUF files are not read)" if any(path.parent.glob("*.gguf")) else ""
        raise ModelNotFound(
            f"{path.parent} has no {path.name}{instead}; a model directory in Hugging Face layout has one"
        )
    return value


def read_config(path: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of a directory, or a config file itself, with a user's overrides applied.

    An override of None is a null in config.json.
    """
    return {**read_json(path if path.is_file() else path / "config.json"), **overrides}


def _from_box(name: str, revision: str | None) -> Path:
    directory = models_in_box().get(name)
    if directory is None:
        raise ModelNotFound(
            f"no model was named, and the default, {name}, is missing from this installation; "
            "install archerfish again, or give --model with a directory or a hub name"
        )
    if revision is not None:
        raise ModelNotFound(
            f"{name} comes with the package, which has no revision {revision!r} of it; leave --revision out"
        )
    return directory


def _box_offer() -> str:
    """Return the alternatives to an unknown name, to end a message."""
    names = ", ".join(models_in_box())
    return f"; the box has {names}" if names else ""


def _is_hub_name(model: str) -> bool:
    parts = model.split("/")
    return 1 <= len(parts) <= 2 and all(part and not part.startswith((".", "~")) for part in parts)


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        snapshot = snapshot_download(
            name,
            revision=revision,
            allow_patterns=patterns,
            ignore_patterns=_UNWANTED,
            # Passed explicitly: some releases otherwise ask the hub for a commit that is in the cache.
            local_files_only=constants.HF_HUB_OFFLINE,
        )
        return Path(snapshot)
    except GatedRepoError as error:
        raise ModelNotFound(f"{name} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{name} has no revision {revision!r} on the hub") from error
    except LocalEntryNotFoundError as error:
        what = "it" if revision is None else f"its revision {revision!r}"
        offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise ModelNotFound(
            f"there is no directory {name}, {what} is not in the hub cache, and {offline}; "
            f"give a local directory{_box_offer()}"
        ) from error
    except (RepositoryNotFoundError, EntryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"there is no directory {name}, and the hub has no such model (or HF_TOKEN may not see it){_box_offer()}"
        ) from error
    except OSError as error:
        raise ModelNotFound(f"there is no directory {name}, and fetching it from the hub failed: {error}") from error
