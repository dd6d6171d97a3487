"""Checkpoints of every family, written once for each test process."""

from pathlib import Path

import pytest
import torch
import transformers

from tests.equivalence.cases import CASES, Reference, reference


@pytest.fixture(scope="session")
def checkpoint_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(params=[case.name for case in CASES])
def family(request: pytest.FixtureRequest, checkpoint_root: Path) -> Reference:
    return reference(request.param, checkpoint_root)
