"""Scratch memory of native kernels: aligned, and never handed out past its end."""

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[3] / "csrc"
COMPILER = shutil.which("c++")
PROGRAM = """
#include "scratch.h"
using namespace archerfish;
void callee(Scratch scratch, uint8_t* expected) { if (scratch.take<uint8_t>(1) != expected) __builtin_trap(); }
alignas(64) uint8_t memory[256];
int main() {
    Scratch scratch(memory, sizeof memory);
    if (scratch.take<float>(3) != (float*)memory) return 1;
    if (scratch.take<uint8_t>(65) != memory + 64) return 2;
    callee(scratch, memory + 192);
    callee(scratch, memory + 192);
    if (scratch.take<double>(8) != (double*)(memory + 192)) return 3;
    if (scratch.take<double>(0) == nullptr) return 4;
    scratch.take<uint8_t>(1);
    return 5;
}
"""


@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_scratch_memory_ends_the_process_at_its_end(tmp_path: Path) -> None:
    assert COMPILER is not None
    source, program = tmp_path / "scratch_test.cpp", tmp_path / "scratch_test"
    source.write_text(PROGRAM)
    sources = [str(source), str(CSRC / "scratch.cpp")]
    subprocess.run([COMPILER, "-std=c++17", "-I", str(CSRC), *sources, "-o", str(program)], check=True)
    ended = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert "needs 64 bytes of scratch memory, and 0 are left" in ended.stderr
