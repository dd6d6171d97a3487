"""A server of OpenAI's API that follows a script, and a clock that moves only when the script says so."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

DONE = "data: [DONE]\n\n"


class ScriptedClock:
    """Reads what it was set to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.num_reads = 0

    def __call__(self) -> float:
        self.num_reads += 1
        return self.now


@dataclass(frozen=True)
class Piece:
    """What is sent at a moment."""

    time: float
    """Seconds of the clock, from its start."""
    text: str


@dataclass
class ScriptedServer:
    clock: ScriptedClock
    pieces: Sequence[Piece] = ()
    status: str = "200 OK"
    breaks_off: bool = False
    """Close the connection behind the last piece, without an end of the body."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    """Of the requests that came."""
    num_connections: int = 0
    port: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while await self._answer_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-length")
        )
        self.bodies.append(json.loads(await reader.readexactly(length)))
        writer.write(f"HTTP/1.1 {self.status}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        start = self.clock.now
        for piece in self.pieces:
            self.clock.now = start + piece.time
            num_reads = self.clock.num_reads
            data = piece.text.encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            # The next piece must not come before the client has looked at the clock for this one.
            while self.clock.num_reads == num_reads:
                await asyncio.sleep(0)
        if self.breaks_off:
            return False
        writer.write(b"0\r\n\r\n")
        return True


@asynccontextmanager
async def scripted_server(**script: Any) -> AsyncIterator[ScriptedServer]:
    scripted = ScriptedServer(ScriptedClock(), **script)
    server = await asyncio.start_server(scripted.answer, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    try:
        yield scripted
    finally:
        server.close()


def event(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def text(value: str, **more: Any) -> str:
    """An event of /v1/completions."""
    return event(choices=[{"index": 0, "text": value, "finish_reason": None}], **more)


def delta(**fields: Any) -> str:
    """An event of /v1/chat/completions."""
    return event(choices=[{"index": 0, "delta": fields, "finish_reason": None}])


def end(reason: str = "length") -> str:
    return event(choices=[{"index": 0, "text": "", "finish_reason": reason}])


def usage(num_in: int, num_out: int, cached: int = 0) -> str:
    counts = {"prompt_tokens": num_in, "completion_tokens": num_out, "prompt_tokens_details": {"cached_tokens": cached}}
    return event(choices=[], usage=counts)
