"""A small app that plays the service for the page, and the headless browser of the person who uses that.

Each test with the fixture `tab` also ends by checking that the page asked no other origin for anything, broke no rule
of its Content-Security-Policy and raised no error.
"""

import asyncio
import base64
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

import archerfish.server
from tests.server.browser import CHROMIUM, NAMES, PATIENCE_S, Chromium, Tab

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason=f"needs a browser on the path, one of: {', '.join(NAMES)}")

PAGE = Path(archerfish.server.__file__).parent / "page"
# With trusted types, which the service does not ask for, text that became HTML anywhere would be a violation too.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; require-trusted-types-for 'script'"
THOUGHTS = ["They", " ask", " for a\n", "<img src=x onerror=alert(1)>", " <i>story</i>", "."]
ANSWER = ["Once", " upon", " a\n", "time", "<img src=x onerror=alert(1)>", " <b>there</b>", " was", " a\n\n", "fish."]


# The service, played.


class Played:
    """What the service does next, and what it was asked."""

    def __init__(self) -> None:
        self.snapshot: Callable[[int], dict[str, Any]] = busy
        self.away = False
        self.key: str | None = None
        self.context = 100_000
        """Words that the messages of a chat may have, and its answer."""
        self.asked: list[dict[str, Any]] = []
        self.counted = 0
        self.hung_up = threading.Event()

    def refuses(self, request: Request) -> bool:
        return self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}"


def busy(tick: int) -> dict[str, Any]:
    """A service with much to do; every number depends on the tick."""
    wave = 1 + tick % 7
    percentiles = {"p50": 10.0 * wave, "p90": 15.0 * wave, "p99": 31.0 * wave}
    states = [(block + tick) // 3 % 3 for block in range(300)]
    return {
        "time": 1000.0 + tick,
        "model": "perch",
        "status": "ready",
        "uptime_s": 100.0 + tick,
        "requests": {"running": wave, "waiting": 2 * wave, "finished": 1234, "failed": 5},
        "tokens": {"prompt_per_s": 300.0 * wave, "generated_per_s": 20.0 * wave},
        "latency": dict.fromkeys(("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"), percentiles),
        "goodput": {"per_s": 1.5, "share": 0.9},
        "kv": {"num_blocks": 300, "free": 100, "cached": 100, "in_use": 100},
        "kv_map": base64.b64encode(bytes(states)).decode(),
        "steps": [{"prefill": i * wave, "decode": 8, "draft": 4, "ms": 10.0 + i} for i in range(60)],
        "roofline": {
            "peak_flops": 3e11,
            "peak_bandwidth": 2e10,
            "points": [
                {"phase": "prefill", "intensity": 40.0, "flops": 2e10 * wave},
                {"phase": "decode", "intensity": 2.0, "flops": 4e9 * wave},
            ],
            "mfu": 0.41,
            "mbu": 0.63,
        },
    }


def idle(tick: int) -> dict[str, Any]:
    """A service that has just started, and measured nothing yet."""
    nothing = {"p50": None, "p90": None, "p99": None}
    return busy(tick) | {
        "status": "loading",
        "requests": dict.fromkeys(("running", "waiting", "finished", "failed"), 0),
        "tokens": {"prompt_per_s": 0.0, "generated_per_s": 0.0},
        "latency": dict.fromkeys(("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"), nothing),
        "goodput": {"per_s": 0.0, "share": None},
        "kv": {"num_blocks": 0, "free": 0, "cached": 0, "in_use": 0},
        "kv_map": "",
        "steps": [],
        "roofline": {"peak_flops": None, "peak_bandwidth": None, "points": [], "mfu": None, "mbu": None},
    }


def refusal(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": error(message)}, status)


def error(message: str) -> dict[str, Any]:
    return {"message": message, "type": "invalid_request_error", "param": None, "code": None}


def event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data)}\n\n"


def piece(text: str, finish_reason: str | None = None) -> str:
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]})


def thought(text: str) -> str:
    delta = {"reasoning": text, "reasoning_content": text}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def num_words(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"].split()) for message in messages)


async def answer(question: str, num_prompt_tokens: int) -> AsyncIterator[str]:
    """What the service streams; the question says what happens in it."""
    thoughts = THOUGHTS if "think" in question else []
    for text in itertools.cycle(thoughts) if "ponder" in question else thoughts:
        await asyncio.sleep(0.05)
        yield thought(text)
    words = [] if "only" in question else ANSWER
    for i, text in enumerate(itertools.cycle(words) if "endless" in question else words):
        await asyncio.sleep(0.05)
        yield piece(text)
        if "break" in question and i == 2:
            yield event({"error": error("The engine stopped.")})
            return
    yield piece("", "length")
    usage: dict[str, Any] = {"prompt_tokens": num_prompt_tokens, "completion_tokens": len(thoughts) + len(words)}
    if thoughts:
        usage["completion_tokens_details"] = {"reasoning_tokens": len(thoughts)}
    yield event({"choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


class Streamed(StreamingResponse):
    """Says when it is over, however it ended: a generator that nobody asks any more is closed whenever it may be."""

    def __init__(self, played: Played, question: str, num_prompt_tokens: int) -> None:
        super().__init__(answer(question, num_prompt_tokens), media_type="text/event-stream")
        self.played = played

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.played.hung_up.set()


def make_app(played: Played) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def policy(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await proceed(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE))

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        if played.refuses(request):
            return refusal(401, "Wrong key.")
        return JSONResponse({"object": "list", "data": [{"id": "perch", "max_model_len": played.context}]})

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        played.counted += 1
        return JSONResponse({"count": num_words((await request.json())["messages"])})

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Response:
        if played.refuses(request):
            return refusal(401, "Wrong key.")
        body = await request.json()
        played.asked.append(body)
        question = body["messages"][-1]["content"]
        if "fail" in question and len(played.asked) == 1:
            return refusal(400, "The prompt has 9000 tokens; <b>2048</b> fit.")
        count = num_words(body["messages"])
        if count >= played.context:
            message = f"the prompt has {count} tokens, but the context holds {played.context}"
            return JSONResponse({"error": error(message) | {"code": "context_length_exceeded"}}, 400)
        return Streamed(played, question, count)

    @app.get("/live")
    async def live(request: Request) -> Response:
        if played.refuses(request):
            return refusal(401, "Wrong key.")
        if played.away:
            return refusal(503, "Away.")

        async def snapshots() -> AsyncIterator[str]:
            for tick in itertools.count():
                if played.away:
                    return
                yield event(played.snapshot(tick))
                await asyncio.sleep(0.1)

        return StreamingResponse(snapshots(), media_type="text/event-stream")

    return app


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
def address(played: Played) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(make_app(played), log_level="critical", ws="none", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(PATIENCE_S)
    listener.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    browser = Chromium(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def tab(browser: Chromium, address: str) -> Iterator[Tab]:
    tab = Tab(browser)
    yield tab
    tab.check(address)
    tab.close()


@pytest.fixture
def page(tab: Tab, address: str) -> Tab:
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'ready'")
    return tab


# What a person does, and sees.


def say(tab: Tab, text: str) -> None:
    tab.click("#message")
    tab.type(text)
    tab.press("Enter")


def finished(tab: Tab) -> None:
    tab.wait("document.querySelector('#stop').hidden && document.querySelector('#log').textContent")


def facts(page: Tab) -> list[str]:
    found: list[str] = page.value("[...document.querySelectorAll('.answer .fact')].map(fact => fact.textContent)")
    return found
