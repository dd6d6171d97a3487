"""A person uses the page, in a headless browser, against a small app that plays the service (`played`)."""

import re

import pytest

from tests.server.browser import PATIENCE_S, Tab
from tests.server.played import ANSWER, Played, busy, facts, finished, idle, needs_browser, say

pytestmark = needs_browser

CANVASES = ["tokens", "requests", "ttft", "tpot", "kv", "steps", "roofline"]


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

    first, speed, *rest = facts(page)
    assert re.fullmatch(r"TTFT [\d.]+ ms", first)
    assert re.fullmatch(r"[\d.]+ tokens/s", speed)
    assert rest == ["9 tokens", "reached max tokens"]


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


OUTSIDE = """[...document.querySelectorAll(
        "button, summary, .thoughts, input, textarea, canvas, .tiles dd, .legend b, td"
    )].filter((element) => element.checkVisibility())
    .filter((element) => {
        const {left, right} = element.getBoundingClientRect();
        return left < 0 || right > screen.width;
    })
    .map((element) => element.outerHTML)"""


def test_phone(tab: Tab, address: str) -> None:
    tab.resize(390, 844, mobile=True)
    tab.open(address)
    tab.wait("document.querySelector('#status').textContent === 'ready'")
    say(tab, "Hello, think")
    finished(tab)
    tab.click(".thinking summary")
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
    say(page, "think only")
    finished(page)
    say(page, "break")
    page.appears("[role=alert]")
    background = page.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")
    assert page.value(CONTRASTS) == []


def test_everything_has_a_name_and_is_reached_by_keyboard(page: Tab) -> None:
    say(page, "think and break")
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
    while reached[-1] != "live" and len(reached) < 21:
        page.press("Tab")
        name = page.value("document.activeElement.id || document.activeElement.textContent")
        reached.append("Thought for" if name.startswith("Thought for") else name)
        assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid", reached[-1]
    expected = [
        "new-conversation",
        "scroll",
        "Thought for",
        "Try again",
        "message",
        "send",
        "temperature",
        "max-tokens",
        "seed",
        "live",
    ]
    assert [name for name in reached if name in expected] == expected
