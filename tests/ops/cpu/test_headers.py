"""Every header of csrc compiles by itself, without warnings."""

import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[3] / "csrc"
COMPILER = shutil.which("c++")
# Unused functions apart: kernels are private to the one file that includes them for an instruction set.
FLAGS = (
    *("-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-x", "c++"),
    *("-march=x86-64-v4", "-mf16c", "-mavx512vnni", "-mavx512bf16"),
    *("-DARCHERFISH_TILES", "-DARCHERFISH_TILES_IN_SOFTWARE"),
)


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("header", sorted(path.name for path in CSRC.glob("*.h")))
def test_a_header_compiles_alone(header: str) -> None:
    assert COMPILER is not None
    command = [COMPILER, *FLAGS, "-include", str(CSRC / header), "/dev/null"]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr
