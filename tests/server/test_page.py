"""A person uses the page, in a headless browser, against a small app that plays the service.

Each test also ends by checking that the page asked no other origin for anything, broke no rule of its
Content-Security-Policy and raised no error.
"""

import asyncio
import base64
import itertools
import json
import re
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

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=f"needs a browser on the path, one of: {', '.join(NAMES)}")

PAGE = Path(archerfish.server.__file__).parent / "page"
# With trusted types, which the service does not ask for, text that became HTML anywhere would be a violation too.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; require-trusted-types-for 'script'"
CANVASES = ["tokens", "requests", "ttft", "tpot", "kv", "steps", "roofline"]
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


def num_words(messages: list[dict[str, str]]) -> int:
    return sum(len(message["content"].split()) for message in messages)


async def answer(question: str, num_prompt_tokens: int) -> AsyncIterator[str]:
    for i, text in enumerate(itertools.cycle(ANSWER) if "endless" in question else ANSWER):
        await asyncio.sleep(0.05)
        yield piece(text)
        if "break" in question and i == 2:
            yield event({"error": error("The engine stopped.")})
            return
    yield piece("", "length")
    yield event({"choices": [], "usage": {"prompt_tokens": num_prompt_tokens, "completion_tokens": 9}})
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


def test_tokens_stream_in(page: Tab, played: Played) -> None:
    page.click("#message")
    page.type("Tell me")
    page.press("Enter", shift=True)
    page.type("a story")
    assert played.asked == []
    page.press("Enter")
    # Some of the answer is there while the rest is still being written.
    writing = "!document.querySelector('#stop').hidden"
    partly = page.wait(f"{writing} && document.querySelector('.answer .text')?.textContent")
    finished(page)
    whole = page.text(".answer .text")
    assert whole == "".join(ANSWER)
    assert whole.startswith(partly)
    assert len(partly) < len(whole)
    assert page.text(".question .text") == "Tell me\na story"
    assert page.value("document.querySelector('#message').value") == ""

    facts = page.value("[...document.querySelectorAll('.answer .fact')].map(fact => fact.textContent)")
    assert re.fullmatch(r"TTFT [\d.]+ ms", facts[0])
    assert re.fullmatch(r"[\d.]+ tokens/s", facts[1])
    assert facts[2:] == ["9 tokens", "reached max tokens"]


def test_answers_are_text_with_their_line_breaks(page: Tab) -> None:
    say(page, "Hello")
    finished(page)
    assert page.value("document.querySelector('.answer .text').childElementCount") == 0
    assert page.value("document.querySelector('#log img, #log b, #log script') === null")
    shown = page.value("document.querySelector('.answer .text').innerText")
    assert shown.splitlines() == "".join(ANSWER).splitlines()


def test_what_is_sent(page: Tab, played: Played) -> None:
    for name, value in (("temperature", "0.3"), ("max-tokens", "17"), ("seed", "5")):
        page.value(f"document.querySelector('#{name}').value = ''")
        page.click(f"#{name}")
        page.type(value)
    say(page, "One")
    finished(page)
    page.value("document.querySelector('#seed').value = ''")
    say(page, "Two")
    finished(page)
    one, two = played.asked
    assert one == {
        "model": "perch",
        "messages": [{"role": "user", "content": "One"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.3,
        "max_tokens": 17,
        "seed": 5,
    }
    assert "seed" not in two
    assert [message["role"] for message in two["messages"]] == ["user", "assistant", "user"]
    assert two["messages"][1]["content"] == "".join(ANSWER)


def test_stop_hangs_up_and_keeps_what_was_written(page: Tab, played: Played) -> None:
    say(page, "endless")
    page.wait("document.querySelector('.answer .text')?.textContent.length > 20")
    page.click("#stop")
    finished(page)
    assert played.hung_up.wait(PATIENCE_S)
    assert "stopped" in page.text(".answer .note")
    written = page.text(".answer .text")
    say(page, "And then?")
    finished(page)
    assert page.text(".answer .text") == written
    assert played.asked[1]["messages"][1]["content"] == written


def test_follows_the_answer_unless_someone_reads_further_up(page: Tab) -> None:
    page.resize(1440, 500)
    gap = "(scroll => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight)(document.querySelector('#scroll'))"
    tall = "document.querySelector('#scroll').scrollHeight > 1.5 * document.querySelector('#scroll').clientHeight"
    say(page, "endless")
    page.wait(tall)
    assert page.value(gap) < 48
    # Again and again, as a wheel does: text that comes between a turn and its event takes the first one back.
    page.wait("(document.querySelector('#scroll').scrollTop = 0, !document.querySelector('#newest').hidden)")
    before = page.value(gap)
    page.wait(f"{gap} > {before}")
    assert page.value("document.querySelector('#scroll').scrollTop") == 0
    page.click("#newest")
    page.wait(f"document.querySelector('#newest').hidden && {gap} < 48")
    page.click("#message")
    page.press("Escape")
    finished(page)


def test_new_conversation(page: Tab, played: Played) -> None:
    assert page.value("document.querySelector('#welcome').checkVisibility()")
    page.click(".suggestion")
    page.wait("document.querySelector('.answer .text')?.textContent.length > 4")
    assert not page.value("document.querySelector('#welcome').checkVisibility()")
    page.click("#new-conversation")
    assert played.hung_up.wait(PATIENCE_S)
    page.wait("document.querySelector('#stop').hidden")
    assert page.text("#log") == ""
    assert page.value("document.querySelector('#welcome').checkVisibility()")
    say(page, "Fresh")
    finished(page)
    assert [message["content"] for message in played.asked[-1]["messages"]] == ["Fresh"]


def test_refused_and_tried_again(page: Tab, played: Played) -> None:
    say(page, "please fail")
    page.appears("[role=alert]")
    assert page.text("[role=alert] p") == "The prompt has 9000 tokens; <b>2048</b> fit."
    page.click("[role=alert] button")
    page.wait("document.querySelector('.answer .text')?.textContent")
    finished(page)
    assert page.value("document.querySelector('[role=alert]') === null")
    assert played.asked[1]["messages"] == [{"role": "user", "content": "please fail"}]


def test_error_inside_the_stream(page: Tab) -> None:
    say(page, "break")
    page.appears("[role=alert]")
    assert page.text(".answer .text") == "".join(ANSWER[:3])
    assert page.text("[role=alert] p") == "The engine stopped."


def test_charts_move(page: Tab) -> None:
    page.value("window.seen = {}")
    for card in CANVASES:
        picture = f"document.querySelector('#{card} canvas').toDataURL()"
        # More of them than a change of the layout could explain.
        page.wait(f"(seen.{card} ??= new Set()).add({picture}).size >= 5")
    assert page.value("document.querySelectorAll('.empty:not([hidden])').length") == 0


def test_values_have_units(page: Tab) -> None:
    page.wait("document.querySelector('#tokens b').textContent !== '–'")
    tiles = page.value("[...document.querySelectorAll('.tiles dd')].map(value => value.textContent)")
    assert tiles[:5] == ["1.50 /s", "90 % in time", "1,234", "requests", "5"]
    assert [tiles[6], tiles[8]] == ["41 %", "63 %"]
    assert re.fullmatch(r"[\d.]+ ms", page.text("#ttft [data-value=p50]"))
    assert re.fullmatch(r"[\d.]+ GFLOP/s", page.text("#roofline [data-value=prefill]"))
    assert page.text("#kv [data-value=in-use-share]") == "33 %"
    assert re.fullmatch(r"[\d.]+ ms", page.text("[data-latency=e2e_ms] td"))
    # Pointing at a chart reads out that moment instead of the newest.
    box = page.value("document.querySelector('#steps canvas').getBoundingClientRect().toJSON()")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + box["width"] / 2, y=box["y"] + 40)
    page.wait("/^[0-9]+ steps ago$/.test(document.querySelector('#steps .when').textContent)")


def test_a_full_context_drops_the_oldest_turns_and_says_so(tab: Tab, address: str, played: Played) -> None:
    played.context = 99
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'ready'")
    tab.value("document.querySelector('#max-tokens').value = 20")
    # Each turn has 20 words and the 10 of an answer, and the answer to come is left 20.
    for name in ("one", "two", "three", "four"):
        say(tab, " ".join([name] * 20))
        tab.wait(
            f"document.querySelector('#stop').hidden && document.querySelector('#log').textContent.includes('{name}')"
        )
    begins = [[message["content"].split()[0] for message in body["messages"]] for body in played.asked]
    assert begins == [["one"], ["one", "Once", "two"], ["two", "Once", "three"], ["three", "Once", "four"]]
    assert tab.text(".dropped") == "The context of 99 tokens is full: the turns above were dropped."
    order = "[...document.querySelector('#log').children].map(child => child.className)"
    assert tab.value(order) == ["exchange forgotten", "exchange forgotten", "dropped", "exchange", "exchange"]
    tab.click("#new-conversation")
    say(tab, "five")
    finished(tab)
    assert len(played.asked[-1]["messages"]) == 1 and tab.value("document.querySelector('.dropped')") is None


def test_tokens_are_not_counted_while_there_is_plenty_of_context(page: Tab, played: Played) -> None:
    for question in ("one", "two"):
        say(page, question)
        finished(page)
    assert len(played.asked) == 2 and played.counted == 0


def test_a_message_that_alone_is_too_long_can_be_edited(tab: Tab, address: str, played: Played) -> None:
    played.context = 100
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'ready'")
    say(tab, "Hello")
    finished(tab)
    tab.wait("document.querySelector('.note').textContent")
    long = " ".join(["word"] * 100)
    say(tab, long)
    tab.appears("[role=alert]")
    assert "the prompt has 100 tokens, but the context holds 100" in tab.text("[role=alert] p")
    assert tab.text("[role=alert] button") == "Edit the message"
    tab.click("[role=alert] button")
    assert tab.value("document.querySelector('#message').value") == long
    assert tab.value("document.activeElement.id") == "message" and len(played.asked) == 2
    # It cost no turn.
    assert tab.value("document.querySelectorAll('.exchange').length") == 1
    assert tab.value("document.querySelector('.dropped, .forgotten')") is None


def test_charts_start_with_what_was_before(tab: Tab, address: str, played: Played) -> None:
    history = [{key: busy(tick)[key] for key in ("time", "tokens", "requests", "latency")} for tick in range(-240, 0)]
    played.snapshot = lambda tick: {**busy(0), "history": history}
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'ready'")
    # The left end of the chart is four minutes ago, and there is something to point at.
    box = tab.value("document.querySelector('#tokens canvas').getBoundingClientRect().toJSON()")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + box["width"] / 2, y=box["y"] + 40)
    tab.wait("/^[12] min( [0-9]+ s)? ago$/.test(document.querySelector('#tokens .when').textContent)")


def test_without_an_objective_nothing_is_said_to_be_in_time(tab: Tab, address: str, played: Played) -> None:
    played.snapshot = lambda tick: {**busy(tick), "goodput": {"per_s": 1.5, "share": None}}
    tab.open(address)
    tab.wait("document.querySelector('[data-value=goodput]').textContent === '1.50 /s'")
    assert tab.text("[data-value=goodput-share]") == "requests"


def test_empty_states_say_what_will_appear(tab: Tab, address: str, played: Played) -> None:
    played.snapshot = idle
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'loading'")
    tab.wait("document.querySelector('#tokens .empty').hidden")
    shown = tab.value("[...document.querySelectorAll('.empty:not([hidden])')].map(empty => empty.textContent)")
    assert len(shown) == 5
    assert all("appear" in text for text in shown)
    played.snapshot = busy
    tab.wait("document.querySelectorAll('.empty:not([hidden])').length === 0")


def test_says_when_the_service_is_away_and_comes_back(page: Tab, played: Played) -> None:
    played.away = True
    page.wait("document.querySelector('#status').textContent === 'away'")
    assert "Trying again in" in page.text("#away")
    # Each try that fails makes the wait longer: a person need not sit through it.
    page.wait("Number(document.querySelector('#away-when').textContent.match(/[0-9]+/)) >= 3")
    played.away = False
    page.click("#away-act")
    page.wait("document.querySelector('#status').textContent === 'ready' && document.querySelector('#away').hidden")


def test_the_key_is_asked_for_once_and_sent(tab: Tab, address: str, played: Played) -> None:
    played.key = "a secret"
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'key needed'")
    tab.click("#away-act")
    tab.type("a secret")
    tab.press("Enter")
    tab.wait("document.querySelector('#status').textContent === 'ready'")
    say(tab, "Hello")
    finished(tab)
    assert tab.text(".answer .text") == "".join(ANSWER)
    tab.call("Page.reload")
    tab.wait("document.querySelector('#status')?.textContent === 'ready'")


OUTSIDE = """[...document.querySelectorAll("button, input, textarea, canvas, .tiles dd, .legend b, td")]
    .filter((element) => element.checkVisibility())
    .filter((element) => {
        const {left, right} = element.getBoundingClientRect();
        return left < 0 || right > screen.width;
    })
    .map((element) => element.outerHTML)"""


def test_phone(tab: Tab, address: str) -> None:
    tab.resize(390, 844, mobile=True)
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'ready'")
    say(tab, "Hello")
    finished(tab)
    assert tab.value(OUTSIDE) == []
    assert not tab.value("document.querySelector('#live').checkVisibility()")
    tab.click(".views [data-view=live]")
    tab.wait("document.querySelector('#tokens canvas').width > 600")
    assert not tab.value("document.querySelector('#chat').checkVisibility()")
    assert tab.value(OUTSIDE) == []


CONTRASTS = """(() => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
    const over = (below, color) => {
        canvas.fillStyle = below; canvas.fillRect(0, 0, 1, 1);
        canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
        return `rgb(${r} ${g} ${b})`;
    };
    const luminance = (color) => {
        const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = color.match(/\\d+/g).map(c => linear(c / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const back = (element) =>
        element ? over(back(element.parentElement), getComputedStyle(element).backgroundColor) : "white";
    const low = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !element.checkVisibility({visibilityProperty: true})) continue;
        const [a, b] = [back(element), getComputedStyle(element).color].map(luminance).sort((x, y) => x - y);
        if ((b + 0.05) / (a + 0.05) < 4.5) low.push(walker.currentNode.data.trim());
    }
    return low;
})()"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_schemes(page: Tab, scheme: str) -> None:
    page.prefer(scheme)
    say(page, "Hello")
    finished(page)
    say(page, "break")
    page.appears("[role=alert]")
    background = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")
    assert page.value(CONTRASTS) == []


def test_everything_has_a_name_and_is_reached_by_keyboard(page: Tab) -> None:
    say(page, "break")
    page.appears("[role=alert]")
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "textbox", "spinbutton", "combobox", "img", "image", "figure", "region", "log", "table"}
    found = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node["ignored"]]
    named = [(role, name) for role, name in found if role in roles]
    assert len(named) > 15
    assert [role for role, name in named if not name] == []
    assert page.value("[...document.querySelectorAll('input, textarea, select')].every(field => field.labels.length)")
    log = "document.querySelector('#log')"
    assert page.value(f"[{log}.ariaLive, {log}.ariaBusy]") == ["polite", "false"]

    reached = [""]
    page.value("document.querySelector('#key-open').focus()")
    while reached[-1] != "live" and len(reached) < 20:
        page.press("Tab")
        reached.append(page.value("document.activeElement.id || document.activeElement.textContent"))
        assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", reached[-1]
    expected = [
        "new-conversation",
        "scroll",
        "Try again",
        "message",
        "send",
        "temperature",
        "max-tokens",
        "seed",
        "live",
    ]
    assert [name for name in reached if name in expected] == expected
