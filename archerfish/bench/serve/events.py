"""Reads the events of a streamed answer: when tokens came, and how many. Knows nothing of connections."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from archerfish.bench.serve.records import ServerTimes

_THINK, _ANSWER = "<think>", "</think>"


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Metrics(msgspec.Struct):
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list)
    usage: _Usage | None = None
    error: Any = None
    metrics: _Metrics | None = None


_decoder = msgspec.json.Decoder(_Event)


class _VisibleText:
    """Detects when visible text begins: after the reasoning, if the answer begins with any."""

    def __init__(self) -> None:
        self._text = ""
        """Enough text to detect a tag that arrives in pieces."""
        self._is_hidden = False

    def feed(self, text: str) -> bool:
        self._text += text
        if not self._is_hidden:
            self._text = self._text.lstrip()
            if not self._text.startswith(_THINK):
                return not _THINK.startswith(self._text)
            self._is_hidden = True
        _, mark, after = self._text.partition(_ANSWER)
        if not mark:
            self._text = self._text[-len(_ANSWER) :]
            return False
        self._is_hidden, self._text = False, after.lstrip()
        return bool(self._text)


@dataclass(slots=True)
class Arrival:
    """A time at which text arrived."""

    time: float
    weight: int
    """Number of characters, by which tokens of one event are estimated."""
    total: int | None
    """Tokens so far, if the server reports them in each event."""


@dataclass(slots=True)
class StreamedAnswer:
    """An answer as far as it has arrived. Fed with bytes and their times of arrival."""

    first_visible: float | None = None
    finish_reason: str | None = None
    num_prompt_tokens: int | None = None
    num_cached_tokens: int | None = None
    num_output_tokens: int | None = None
    """Number of output tokens that the server counted."""
    server: ServerTimes | None = None
    error: str | None = None
    is_done: bool = False
    """Whether the server reported the end of the stream."""
    _arrivals: list[Arrival] = field(default_factory=list)
    _finish_time: float | None = None
    """Return when the answer ended without further text."""
    _unread: bytes = b""
    _visible: _VisibleText = field(default_factory=_VisibleText)

    def feed(self, data: bytes, now: float) -> None:
        if self._unread:
            data = self._unread + data
        end = data.rfind(b"\n") + 1
        self._unread = data[end:]
        for line in data[:end].splitlines():
            # A stream also has empty lines, comments that keep the connection alive, and event names.
            if line.startswith(b"data:"):
                self._read(line[5:].strip(), now)

    def token_times(self) -> tuple[float, ...]:
        """Return one time per token. The server's count decides how many there are."""
        arrivals, total = self._arrivals, self.num_output_tokens
        if total is None:
            return tuple(arrival.time for arrival in arrivals)
        if arrivals and arrivals[-1].total == total and all(arrival.total is not None for arrival in arrivals):
            return _by_totals(arrivals)
        if total > len(arrivals) and self._finish_time is not None and self.finish_reason == "stop":
            # The token that ends an answer has no text.
            arrivals = [*arrivals, Arrival(self._finish_time, 0, None)]
        return _settled(arrivals, total)

    def _read(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        try:
            event = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            self.error = f"the server sent an event that is not understood ({error}): {data[:200]!r}"
            return
        if event.error is not None:
            self.error = _message(event.error)
        if event.usage is not None:
            self._read_usage(event.usage)
        if event.metrics is not None:
            reported = event.metrics
            self.server = ServerTimes(
                queue=_seconds(reported.queue_ms), ttft=_seconds(reported.ttft_ms), tpot=_seconds(reported.tpot_ms)
            )
        for choice in event.choices:
            self._read_choice(choice, event.usage, now)

    def _read_usage(self, usage: _Usage) -> None:
        if usage.prompt_tokens is not None:
            self.num_prompt_tokens = usage.prompt_tokens
        if usage.completion_tokens is not None:
            self.num_output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None and usage.prompt_tokens_details.cached_tokens is not None:
            self.num_cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _read_choice(self, choice: _Choice, usage: _Usage | None, now: float) -> None:
        delta = choice.delta
        shown = choice.text if delta is None else delta.content
        hidden = None if delta is None else delta.reasoning_content or delta.reasoning
        calls = 0 if delta is None or not delta.tool_calls else sum(len(bytes(call)) for call in delta.tool_calls)
        weight = len(shown or "") + len(hidden or "") + calls
        if weight:
            total = None if usage is None else usage.completion_tokens
            self._arrivals.append(Arrival(now, weight, total))
            if self.first_visible is None and (calls or (shown and self._visible.feed(shown))):
                self.first_visible = now
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
            if not weight:
                self._finish_time = now


def _by_totals(arrivals: list[Arrival]) -> tuple[float, ...]:
    times: list[float] = []
    for arrival in arrivals:
        times += [arrival.time] * ((arrival.total or 0) - len(times))
    return tuple(times)


def _settled(arrivals: list[Arrival], total: int) -> tuple[float, ...]:
    """Return times for so many tokens: each arrival has at least one if there are enough, longer texts more."""
    count = len(arrivals)
    if not count or not total:
        return ()
    if total <= count:
        # First and last are always among them.
        step = (count - 1) / (total - 1) if total > 1 else 0.0
        return tuple(arrivals[round(index * step)].time for index in range(total))
    all_weight = sum(arrival.weight for arrival in arrivals) or 1
    more = [(total - count) * arrival.weight / all_weight for arrival in arrivals]
    tokens = [1 + int(share) for share in more]
    by_remainder = sorted(range(count), key=lambda index: int(more[index]) - more[index])
    for index in by_remainder[: total - sum(tokens)]:
        tokens[index] += 1
    return tuple(arrival.time for arrival, number in zip(arrivals, tokens, strict=True) for _ in range(number))


def error_message(body: bytes) -> str:
    """Return the message of an error response, in one line."""
    try:
        value = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return " ".join(body[:500].decode("utf-8", "replace").split())
    if isinstance(value, dict):
        value = value.get("error", value.get("detail", value.get("message", value)))
    return _message(value)


def _message(value: Any) -> str:
    if isinstance(value, dict) and "message" in value:
        value = value["message"]
    return " ".join(str(value).split())[:500]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
