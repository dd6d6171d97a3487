"""Drives a response from its first token to its end, and gives its events to whoever follows. Knows no HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from archerfish.request import FinishReason
from archerfish.server.answers import Answer
from archerfish.server.errors import ApiError, as_api_error
from archerfish.server.replies import request_metrics
from archerfish.server.response_writer import Event, ResponseWriter
from archerfish.server.sse import event


class Run:
    """A response being written, whether or not anybody listens."""

    def __init__(
        self, answer: Answer, writer: ResponseWriter, on_end: Callable[["Run"], None], *, is_told: bool, metrics: bool
    ) -> None:
        """`is_told`: its events can be followed. `metrics`: its end says how long each part took."""
        self.response = writer.response
        self.failure: ApiError | None = None
        self.events: list[bytes] = []
        self._answer = answer
        self._writer = writer
        self._on_end = on_end
        self.is_told = is_told
        self._metrics = metrics
        self._ended = asyncio.Event()
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._write(), name=f"response {self.response_id}")

    @property
    def response_id(self) -> str:
        return str(self.response["id"])

    def cancel(self) -> None:
        """Write no more of it. Nothing happens to one that has ended."""
        self._answer.close()

    async def wait(self) -> None:
        await self._ended.wait()

    async def follow(self, start: int = 0) -> AsyncIterator[bytes]:
        """Its events from the beginning, or from this one on, up to its end."""
        assert self.is_told
        while True:
            for data in self.events[start:]:
                start += 1
                yield data
            if start >= len(self.events):
                if self._ended.is_set():
                    return
                await self._news.wait()

    async def _write(self) -> None:
        writer = self._writer
        try:
            self._tell(writer.begin())
            while pieces := await self._answer.next():
                for piece in pieces:
                    self._tell(writer.add(piece))
            self._end(self._answer.output.outputs[0].error)
        except Exception as error:
            self._end(as_api_error(error).detail)
        finally:
            self._answer.close()
            self._ended.set()
            self._wake()
            self._on_end(self)

    def _end(self, error: str | None) -> None:
        reason = self._answer.output.outputs[0].finish_reason
        more: dict[str, Any] = {"metrics": request_metrics(self._answer)} if self._metrics else {}
        if error is not None or reason == FinishReason.ERROR.value:
            self.failure = self._answer.failure(error)
            more["error"] = {"code": "server_error", "message": self.failure.detail}
            self._tell(self._writer.end("failed", self._usage(), **more))
        elif reason == FinishReason.STOP.value:
            self._tell(self._writer.end("completed", self._usage(), **more))
        elif reason == FinishReason.LENGTH.value:
            more["incomplete_details"] = {"reason": "max_output_tokens"}
            self._tell(self._writer.end("incomplete", self._usage(), **more))
        else:
            self._tell(self._writer.end("cancelled", self._usage(), **more))

    def _usage(self) -> dict[str, Any]:
        used = self._answer.usage
        return {
            "input_tokens": used.num_prompt_tokens,
            "input_tokens_details": {"cached_tokens": used.num_cached_tokens, "cache_write_tokens": 0},
            "output_tokens": used.num_generated_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.num_prompt_tokens + used.num_generated_tokens,
        }

    def _tell(self, events: Iterable[Event]) -> None:
        for one in events:
            if self.is_told:
                self.events.append(event(one, one["type"]))
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
