"""One service for all tests that do not need one of their own, and the page in a browser against a played one."""

from collections.abc import Iterator

import openai
import pytest

from archerfish import LLM
from tests.server.played import address, browser, page, played, tab
from tests.server.running import RunningService, running_service

__all__ = ["address", "browser", "client", "llm", "page", "played", "service", "tab"]

SETTINGS = ("--dtype", "float32", "--max-num-seqs", "16")


@pytest.fixture(scope="session")
def service() -> Iterator[RunningService]:
    with running_service(*SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
def client(service: RunningService) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def llm() -> Iterator[LLM]:
    """The same model offline, to compare with."""
    with LLM(dtype="float32", threads=1, max_num_seqs=16) as offline:
        yield offline
