"""Without keys, pages of other sites are refused by the Host and Origin that browsers send."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.errors import ConfigError
from archerfish.server.origins import Origins
from tests.server.scripted import scripted_service


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", None),
        ("LOCALHOST", None),
        ("127.0.0.1:8000", None),
        ("[::1]:8000", None),
        ("192.168.1.7", None),  # An address is no name that could be made to mean this machine.
        (None, None),
        ("localhost:8000", "http://localhost:8000"),
        ("models.example", "http://models.example"),
        ("localhost:8000", "https://page.example"),
    ],
)
def test_what_may_call(host: str | None, origin: str | None) -> None:
    origins = Origins("127.0.0.1", "models.example", "https://page.example")
    assert origins.problem(host, origin) is None


@pytest.mark.parametrize(
    ("host", "origin", "said"),
    [
        ("evil.example", None, "--allowed-hosts"),
        ("evil.example:8000", "http://evil.example:8000", "--allowed-hosts"),
        ("localhost.evil.example", None, "--allowed-hosts"),
        ("127.0.0.1.evil.example", None, "--allowed-hosts"),
        ("", None, "--allowed-hosts"),
        ("localhost:8000", "http://evil.example", "--cors-origins"),
        ("localhost:8000", "http://localhost:9000", "--cors-origins"),
        ("localhost:8000", "null", "--cors-origins"),
        ("localhost:8000", "http://localhost:8000.evil.example", "--cors-origins"),
        ("localhost:8000", "", "--cors-origins"),
    ],
)
def test_what_may_not(host: str, origin: str | None, said: str) -> None:
    problem = Origins("127.0.0.1").problem(host, origin)
    assert problem is not None and said in problem


@given(st.text(), st.text())
def test_any_headers_are_judged(host: str, origin: str) -> None:
    Origins("127.0.0.1").problem(host, origin)


def test_everything_may_be_allowed() -> None:
    assert Origins("127.0.0.1", "*", "*").problem("any.example", "http://any.example") is None


def test_a_url_is_no_host_name() -> None:
    with pytest.raises(ConfigError, match=r"--allowed-hosts: 'http://a.example' is not a host name"):
        Origins("127.0.0.1", "http://a.example")


def test_rebinding_and_forms_of_other_sites_are_refused() -> None:
    async def story() -> None:
        async with scripted_service() as (_, client, _):
            rebound = {"Host": "evil.example", "Origin": "http://evil.example"}
            for path in ("/v1/files", "/v1/models", "/metrics", "/", "/health"):
                reply = await client.get(path, headers=rebound)
                assert reply.status_code == 403 and reply.json()["error"]["code"] == "origin_not_allowed"
            form = {"file": ("a.jsonl", b"{}")}
            foreign = {"Origin": "http://evil.example"}
            reply = await client.post("/v1/files", files=form, data={"purpose": "batch"}, headers=foreign)
            assert reply.status_code == 403
            assert (await client.get("/v1/models")).status_code == 200

    asyncio.run(story())


def test_a_key_takes_the_place_of_these_checks() -> None:
    async def story() -> None:
        async with scripted_service(api_key=("secret",)) as (_, client, _):
            headers = {"Host": "models.example", "Origin": "http://models.example"}
            assert (await client.get("/v1/models", headers=headers)).status_code == 401
            headers["Authorization"] = "Bearer secret"
            assert (await client.get("/v1/models", headers=headers)).status_code == 200

    asyncio.run(story())
