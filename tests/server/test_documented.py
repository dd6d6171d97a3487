"""docs/http-api.md names every endpoint, every field of a body and every error code."""

import re
from pathlib import Path

import pytest

import archerfish
from archerfish.api.endpoints import BODIES
from archerfish.server.app import _ROUTERS

PACKAGE = Path(archerfish.__file__).parent
TEXT = (PACKAGE.parent / "docs" / "http-api.md").read_text()
NAMES = {name for quoted in re.findall(r"`([^`]+)`", TEXT) for name in re.findall(r"\w+", quoted)}


@pytest.mark.parametrize("endpoint", BODIES)
def test_every_field(endpoint: str) -> None:
    fields = {field.alias or name for name, field in BODIES[endpoint].body.model_fields.items()}
    assert not fields - NAMES


def test_every_endpoint() -> None:
    paths = {route.path.replace(":path", "") for router in _ROUTERS for route in router.routes}  # type: ignore[attr-defined]
    paths -= {"/page/{name}"}
    assert len(paths) > 20
    quoted = set(re.findall(r"[`\s](/[^`\s,]*)`", TEXT))
    assert not paths - quoted


def test_every_error_code() -> None:
    sources = [*(PACKAGE / "server").rglob("*.py"), *(PACKAGE / "api").rglob("*.py")]
    text = "".join(source.read_text() for source in sources)
    codes = set(re.findall(r'code="(\w+)"', text)) | {"unknown_field", "unsupported_field"}
    assert len(codes) > 15 and not codes - NAMES
    statuses = set(re.findall(r"(?:ApiError|ErrorReply)\(\s*(\d{3})", text)) | {"404", "409", "431", "507"}
    assert not statuses - set(re.findall(r"^\| (\d{3})(?=.* \|)", TEXT, re.MULTILINE))
