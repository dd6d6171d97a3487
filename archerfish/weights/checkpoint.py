"""A checkpoint's safetensors files, memory-mapped: names, shapes and dtypes first, contents only on demand."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from safetensors import SafetensorError, safe_open

from archerfish.errors import CheckpointError
from archerfish.files import check_regular
from archerfish.weights.locate import UNREAD_WEIGHTS, read_json

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_FETCH = "download or copy them"


class Stored(NamedTuple):
    """One tensor as its file describes it."""

    file: Path
    name: str
    """Name as spelled in the file."""
    shape: tuple[int, ...]
    dtype: str


class SafetensorsCheckpoint:
    """Open files of one checkpoint. Use as a context manager."""

    def __init__(self, directory: Path, renames: tuple[tuple[str, str], ...] = ()) -> None:
        self.directory = directory
        self._open: dict[Path, Any] = {}
        self.tensors: dict[str, Stored] = {}
        """By name after renaming."""
        try:
            for file in _files(directory):
                self._add(file, renames)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "SafetensorsCheckpoint":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        for handle in self._open.values():
            handle.__exit__(None, None, None)
        self._open.clear()

    def read(self, name: str) -> "Tensor":
        """Return a view of the file's pages: nothing is copied until it is used."""
        stored = self.tensors[name]
        tensor: Tensor = self._open[stored.file].get_tensor(stored.name)
        return tensor

    def _add(self, file: Path, renames: tuple[tuple[str, str], ...]) -> None:
        with _naming(file):
            check_regular(file, CheckpointError)
            self._open[file] = safe_open(file, framework="pt", device="cpu")
            for stored in _header(file, self._open[file]):
                name = stored.name
                for pattern, replacement in renames:
                    name = re.sub(pattern, replacement, name)
                if name in self.tensors:
                    raise CheckpointError(f"{file} and {self.tensors[name].file} both hold {stored.name}")
                self.tensors[name] = stored


def read_headers(directory: Path) -> list[Stored]:
    """Return the descriptions of all tensors. Needs no torch."""
    headers: list[Stored] = []
    for file in _files(directory):
        with _naming(file):
            check_regular(file, CheckpointError)
            with safe_open(file, framework="np") as handle:
                headers += _header(file, handle)
    return headers


def is_float(stored: Stored) -> bool:
    return stored.dtype in _FLOATS


def _header(file: Path, handle: Any) -> Iterator[Stored]:
    for name in handle.keys():  # noqa: SIM118 - not a dict
        part = handle.get_slice(name)
        yield Stored(file, name, tuple(part.get_shape()), part.get_dtype())


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Raise errors that name the file which cannot be read."""
    try:
        yield
    except (SafetensorError, OSError, ValueError) as error:
        size = file.stat().st_size if file.exists() else 0
        raise CheckpointError(f"{file} ({size} bytes) is not a whole safetensors file: {error}") from error


def _files(directory: Path) -> Iterator[Path]:
    index = directory / "model.safetensors.index.json"
    if index.exists():
        mapping = read_json(index).get("weight_map")
        if not isinstance(mapping, dict) or not all(isinstance(name, str) for name in mapping.values()):
            raise CheckpointError(f"{index} has no weight_map from tensor names to file names")
        names = sorted(set(mapping.values()))
        if outside := [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise CheckpointError(
                f"{index.name} names files outside of {directory} ({', '.join(outside[:3])}): {_FETCH}"
            )
        if missing := [name for name in names if not (directory / name).is_file()]:
            raise CheckpointError(
                f"{index.name} names files that {directory} does not have ({', '.join(missing)}): {_FETCH}"
            )
        yield from (directory / name for name in names)
        return
    unread = sorted(directory.glob(UNREAD_WEIGHTS))
    files = sorted(set(directory.glob("*.safetensors")) - set(unread))
    single = directory / "model.safetensors"
    if single in files:
        files = [single]
    if not files:
        raise CheckpointError(f"{directory} has no .safetensors files{_what_instead(directory, unread)}")
    yield from files


def _what_instead(directory: Path, unread: list[Path]) -> str:
    if unread:
        return f" in Hugging Face layout. It has {unread[0].name}, Mistral's own layout; convert it."
    pickles = [path.name for pattern in _PICKLES for path in sorted(directory.glob(pattern))]
    if pickles:
        return f". It has {', '.join(pickles[:3])}: pickled weights can run code and are not read; convert them."
    return f": {_FETCH}."
