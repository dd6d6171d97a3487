"""Checkpoints of every family, written once for each test process."""

from pathlib import Path

import pytest
import torch
import transformers

from tests.equivalence.cases import CASES, Reference, reference
from tests.lanes import full


@pytest.fixture(scope="session")
def checkpoint_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("checkpoints")


REPRESENTATIVE = ("llama3-gqa-tied", "gemma2", "qwen3-moe")
"""Families with shared keys, with windows and with experts."""


@pytest.fixture(scope="module", params=[case.name for case in CASES])
def family(request: pytest.FixtureRequest, checkpoint_root: Path) -> Reference:
    return reference(request.param, checkpoint_root)


@pytest.fixture(
    scope="module",
    params=[*REPRESENTATIVE, *full(*(case.name for case in CASES if case.name not in REPRESENTATIVE))],
)
def representative(request: pytest.FixtureRequest, checkpoint_root: Path) -> Reference:
    """A family for a grid of engines: a few in the quick lane, all in the full one."""
    return reference(request.param, checkpoint_root)
