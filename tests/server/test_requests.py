"""Bodies in transit are bounded for each key and for all, and small ones are always read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from archerfish.server.errors import ApiError
from archerfish.server.requests import SMALL_BODY, BodyLimits

LARGE = 10 * SMALL_BODY


def sent_by(name: str, *pieces: int) -> Any:
    async def stream() -> AsyncIterator[bytes]:
        for size in pieces:
            yield b"a" * size

    return SimpleNamespace(state=SimpleNamespace(context=SimpleNamespace(tenant=name)), headers={}, stream=stream)


def test_one_key_cannot_shut_out_another() -> None:
    async def story() -> None:
        limits = BodyLimits(max_bytes=LARGE, timeout=10.0, max_held_bytes=40 * SMALL_BODY)
        async with AsyncExitStack() as held:
            for _ in range(2):
                assert (
                    len(await held.enter_async_context(limits.received(sent_by("a", LARGE // 2, LARGE // 2)))) == LARGE
                )
            with pytest.raises(ApiError, match="too many large bodies"):
                await held.enter_async_context(limits.received(sent_by("a", LARGE)))
            assert len(await held.enter_async_context(limits.received(sent_by("a", SMALL_BODY)))) == SMALL_BODY
            for _ in range(2):
                await held.enter_async_context(limits.received(sent_by("b", LARGE)))
            with pytest.raises(ApiError, match="too many large bodies"):
                await held.enter_async_context(limits.received(sent_by("c", LARGE)))
            assert limits.held_bytes.total() == 4 * (LARGE - SMALL_BODY)
        assert not limits.held_bytes

    asyncio.run(story())


def test_what_was_held_is_given_back_whatever_happens() -> None:
    async def story() -> None:
        limits = BodyLimits(max_bytes=LARGE, timeout=10.0, max_held_bytes=40 * SMALL_BODY)
        with pytest.raises(ApiError, match="larger than"):
            async with limits.received(sent_by("a", LARGE, 1)):
                pass
        with pytest.raises(KeyError):
            async with limits.received(sent_by("a", LARGE)):
                raise KeyError
        assert not limits.held_bytes

    asyncio.run(story())


def test_a_timeout_of_the_work_is_not_reported_as_one_of_the_body() -> None:
    async def story() -> None:
        limits = BodyLimits(max_bytes=LARGE, timeout=10.0, max_held_bytes=40 * SMALL_BODY)
        with pytest.raises(TimeoutError):
            async with limits.received(sent_by("a", LARGE)):
                raise TimeoutError
        assert not limits.held_bytes

    asyncio.run(story())
