"""Log lines and progress bars, all on standard error."""

import json
import logging
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

logger = logging.getLogger("archerfish")

_PATIENCE = 0.7  # Seconds of work before a bar is worth showing.


def enable_logging(*, as_json: bool = False) -> None:
    """Show the package's messages, unless the program has set up logging itself.

    As JSON, log lines of libraries are objects too, because a reader of objects cannot parse other lines.
    """
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(_JsonFormatter() if as_json else logging.Formatter("%(message)s"))
        (logging.getLogger() if as_json else logger).addHandler(handler)
        logger.setLevel(logging.INFO)


class _JsonFormatter(logging.Formatter):
    """One object a line: the fields that a message brings (extra={"fields": ...}), or its text."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": record.created, "level": record.levelname.lower()}
        line |= getattr(record, "fields", None) or {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class ProgressBar:
    """A bar that appears only on a terminal, and only if the work takes long enough to be waited for."""

    def __init__(self, title: str, total: float, *, enabled: bool = True, in_bytes: bool = False) -> None:
        self._title = title
        self._total = total
        self._in_bytes = in_bytes
        self._enabled = enabled and sys.stderr.isatty()
        self._appears_at = time.monotonic() + _PATIENCE
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._bar is not None:
            self._bar[0].stop()

    def update(self, done: float, note: str = "") -> None:
        """Say how much of the total is done, and something beside it."""
        if not self._enabled or (self._bar is None and time.monotonic() < self._appears_at):
            return
        if self._bar is None:
            self._bar = self._start()
        progress, task = self._bar
        progress.update(task, completed=done, note=note)

    def _start(self) -> "tuple[Progress, TaskID]":
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        amount = DownloadColumn() if self._in_bytes else MofNCompleteColumn()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            amount,
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        progress = Progress(*columns, console=Console(stderr=True), transient=True)
        progress.start()
        return progress, progress.add_task(self._title, total=self._total, note="")


class CallersBar:
    """A bar that the caller's function makes, which takes tqdm's arguments: for example partial(tqdm, leave=False)."""

    def __init__(self, make: Callable[..., Any], title: str, total: int) -> None:
        self._bar = make(total=total, desc=title)
        self._done = 0

    def __enter__(self) -> "CallersBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def update(self, done: int, note: str = "") -> None:
        """Say how much of the total is done."""
        if done > self._done:
            self._bar.update(done - self._done)
            self._done = done
        if note and hasattr(self._bar, "set_postfix_str"):
            self._bar.set_postfix_str(note)


def progress_bar(title: str, total: int, shown: bool | Callable[..., Any]) -> ProgressBar | CallersBar:
    """A bar where it is wanted, the caller's own if a function was given."""
    return CallersBar(shown, title, total) if callable(shown) else ProgressBar(title, total, enabled=bool(shown))
