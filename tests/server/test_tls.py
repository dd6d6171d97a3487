"""HTTPS with one's own certificate, and what is wrong with files that are none."""

import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from archerfish.config.settings import EngineConfig, ServerConfig
from archerfish.errors import ConfigError
from archerfish.server.serve import serve
from tests.server.running import running_service
from tests.server.scripted_process import COMMAND


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def pair(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    return issue(authority, tmp_path_factory.mktemp("tls"))


def issue(authority: trustme.CA, directory: Path) -> tuple[Path, Path]:
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = directory / "certificate.pem", directory / "key.pem"
    issued.private_key_pem.write_to_path(key)
    certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return certificate, key


def test_a_client_that_knows_the_certificate_is_served(authority: trustme.CA, pair: tuple[Path, Path]) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    flags = ("--tls-certificate", str(pair[0]), "--tls-key", str(pair[1]))
    with running_service(*flags, verify=context, command=COMMAND) as service:
        assert service.url.startswith("https://127.0.0.1:")
        body = {"prompt": "Once", "max_tokens": 2}
        reply = httpx.post(f"{service.url}/v1/completions", json=body, verify=context, timeout=60)
        assert reply.status_code == 200 and reply.json()["usage"]["completion_tokens"] == 2
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            httpx.get(f"{service.url}/version")
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{service.url.replace('https', 'http')}/version")


def refusal(certificate: Path | None, key: Path | None) -> str:
    files = {
        "tls_certificate": None if certificate is None else str(certificate),
        "tls_key": None if key is None else str(key),
    }
    with pytest.raises(ConfigError) as caught:
        serve(EngineConfig(), ServerConfig(**files))
    return str(caught.value)


def test_both_files_are_needed(pair: tuple[Path, Path]) -> None:
    said = "--tls-certificate and --tls-key go together: give both"
    assert refusal(pair[0], None) == refusal(None, pair[1]) == said


def test_a_file_that_is_missing_is_named_by_its_flag(pair: tuple[Path, Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    assert refusal(missing, pair[1]) == f"cannot read --tls-certificate {missing}: No such file or directory"
    assert refusal(pair[0], missing) == f"cannot read --tls-key {missing}: No such file or directory"
    assert refusal(pair[0], tmp_path) == f"cannot read --tls-key {tmp_path}: Is a directory"


def test_files_that_do_not_belong_together(authority: trustme.CA, pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, other_key = issue(authority, tmp_path)
    said = refusal(pair[0], other_key)
    assert str(pair[0]) in said and str(other_key) in said and "mismatch" in said
    text = tmp_path / "text.pem"
    text.write_text("not a certificate")
    assert "do not make a PEM certificate and its key" in refusal(text, pair[1])
    assert "do not make a PEM certificate and its key" in refusal(pair[0], text)


def test_a_key_with_a_password_is_refused_instead_of_asked_for(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as keys

    key = keys.load_pem_private_key(pair[1].read_bytes(), None)
    locked = tmp_path / "locked.pem"
    lock = keys.BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(keys.Encoding.PEM, keys.PrivateFormat.PKCS8, lock))
    assert "is encrypted; give it without a password" in refusal(pair[0], locked)
