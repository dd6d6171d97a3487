"""Does what takes long beside the event loop, so that everybody's streams go on meanwhile."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request

Result = TypeVar("Result")

LONG = 4096
"""Bytes of a body, or characters of prompts: more are not laid out or tokenized within a few milliseconds."""


async def in_time(work: Callable[[], Result], *, is_long: bool) -> Result:
    """The result of work that is done at once if it is short, and in a thread if it is long."""
    return await asyncio.to_thread(work) if is_long else work()


async def read_in_time(http: Request, work: Callable[[], Result]) -> Result:
    """The same for work that is as long as the body of a request."""
    return await in_time(work, is_long=len(await http.body()) > LONG)
