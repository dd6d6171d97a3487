"""What the package declares of the native library is what the library declares of itself, field by field."""

import ctypes
import re
from ctypes import c_float

import pytest

from archerfish.ops.cpu import program
from archerfish.ops.cpu.abi import find_mismatch
from archerfish.ops.cpu.library import Library, library
from tests.ops.cpu.native import needs_native

pytestmark = needs_native


def description() -> str:
    loaded = library()
    assert isinstance(loaded, Library)
    text: bytes = loaded.functions.archerfish_abi()
    return text.decode()


def test_the_library_and_the_package_agree() -> None:
    assert find_mismatch(description()) is None


@pytest.mark.parametrize(
    ("line", "replacement", "message"),
    [
        (r"(field NormArgs eps) (\d+)", r"\1 4", r"field NormArgs.eps is float of 4 bytes at byte 4 in the library"),
        (r"(field NormArgs eps .*) float", r"\1 integer", r"field NormArgs.eps is integer of 4 bytes"),
        (r"field NormArgs eps", "field NormArgs epsilon", r"field NormArgs.eps is not declared in the library"),
        (r"(field Chunk start) (\d+) 8", r"\1 \2 4", r"field Chunk.start is integer of 4 bytes"),
        (
            r"(structure StepView) (\d+)",
            r"\1 8",
            r"structure StepView is 8 bytes in the library and \d+ bytes in the package",
        ),
        (r"operation embed 0", "operation embed 1", r"operation embed is number 1 with EmbedArgs in the library"),
        (
            r"operation rotate 6 RotateArgs",
            "operation rotate 6 NormArgs",
            r"operation rotate is number 6 with NormArgs",
        ),
        (r"enumerator Limit slot \d+", "enumerator Limit slot 1", r"Limit slot is number 1 in the library"),
        (r"constant PANEL 64", "constant PANEL 32", r"constant PANEL is 32 in the library and 64 in the package"),
        (
            r"$",
            "operation sort 99 SortArgs",
            r"operation sort is number 99 with SortArgs in the library and not declared",
        ),
    ],
)
def test_a_library_that_declares_another_thing_is_refused(line: str, replacement: str, message: str) -> None:
    declared = description()
    changed = declared + replacement if line == "$" else re.sub(line, replacement, declared, count=1)
    assert changed != declared
    mismatch = find_mismatch(changed)
    assert mismatch is not None and re.match(message, mismatch), mismatch


def test_a_package_with_two_fields_in_another_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class SoftcapArgs(ctypes.Structure):
        _fields_ = (("out", program.StridedRows), ("cap", c_float), ("input", program.StridedRows))

    monkeypatch.setattr(program, "SoftcapArgs", SoftcapArgs)
    mismatch = find_mismatch(description())
    assert mismatch is not None and mismatch.startswith(
        "field SoftcapArgs.cap is float of 4 bytes at byte 64 in the library and"
    )
