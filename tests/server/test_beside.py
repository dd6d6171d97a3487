"""What takes long is done beside the event loop, what is short at once."""

import asyncio
import threading

from archerfish.server.beside import LONG, in_time, read_in_time


class _Http:
    def __init__(self, size: int) -> None:
        self._size = size

    async def body(self) -> bytes:
        return b" " * self._size


def test_only_long_work_leaves_the_event_loop() -> None:
    async def thread_of(*, is_long: bool) -> int:
        return await in_time(threading.get_ident, is_long=is_long)

    assert asyncio.run(thread_of(is_long=False)) == threading.get_ident()
    assert asyncio.run(thread_of(is_long=True)) != threading.get_ident()


def test_a_body_is_long_by_its_size() -> None:
    async def thread_of(size: int) -> int:
        return await read_in_time(_Http(size), threading.get_ident)  # type: ignore[arg-type]

    assert asyncio.run(thread_of(LONG)) == threading.get_ident()
    assert asyncio.run(thread_of(LONG + 1)) != threading.get_ident()


def test_others_are_answered_while_long_work_goes_on() -> None:
    async def both() -> str:
        may_end = threading.Event()

        def work() -> str:
            assert may_end.wait(60), "the event loop stood still"
            return "done"

        working = asyncio.create_task(in_time(work, is_long=True))
        await asyncio.sleep(0)
        may_end.set()
        return await working

    assert asyncio.run(both()) == "done"
