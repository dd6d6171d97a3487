"""How the page shows a model that thinks before it answers."""

import re

import pytest

from tests.server.browser import PATIENCE_S, Tab
from tests.server.played import ANSWER, THOUGHTS, Played, facts, finished, needs_browser, say

pytestmark = needs_browser


def test_reasoning_streams_in_and_is_folded_away_when_the_answer_begins(page: Tab, played: Played) -> None:
    say(page, "Please think")
    writing = "!document.querySelector('#stop').hidden"
    partly = page.wait(f"{writing} && document.querySelector('.answer .thoughts')?.textContent")
    assert page.value("document.querySelector('.thinking').open")
    assert page.text(".thinking summary").startswith("Thinking") and page.text(".answer .text") == ""
    page.wait("/^Thinking [0-9]+ ms$/.test(document.querySelector('.thinking summary').textContent)")
    page.wait("!document.querySelector('.thinking').open")
    assert page.value(writing), "folded away while the answer is still being written"
    finished(page)
    thoughts = page.text(".answer .thoughts")
    assert thoughts == "".join(THOUGHTS) and thoughts.startswith(partly)
    assert page.text(".answer .text") == "".join(ANSWER)
    assert page.value("document.querySelector('#log img, #log i, #log b') === null")
    # From the first of the reasoning to the first of the answer: six pauses of 50 ms.
    spent = re.fullmatch(r"Thought for (\d+) ms", page.text(".thinking summary"))
    assert spent and int(spent[1]) > 150

    first, speed, *rest = facts(page)
    assert re.fullmatch(r"TTFT [\d.]+ ms", first) and re.fullmatch(r"[\d.]+ tokens/s", speed)
    # The first token is one of the reasoning, and the speed is that of all tokens: about 20 a second.
    assert float(first.split()[1]) < int(spent[1]) and float(speed.split()[0]) < 30
    assert rest == ["15 tokens (6 thinking)", "reached max tokens"]
    # What it thought is not repeated to the model.
    say(page, "And then?")
    finished(page)
    assert played.asked[1]["messages"][1] == {"role": "assistant", "content": "".join(ANSWER)}
    page.click(".thinking summary")
    assert page.value("document.querySelector('.thoughts').checkVisibility()")


def test_an_answer_that_is_still_thinking_at_max_tokens_says_so(page: Tab, played: Played) -> None:
    say(page, "think only")
    finished(page)
    assert page.text(".answer .thoughts") == "".join(THOUGHTS) and page.text(".answer .text") == ""
    assert page.value("document.querySelector('.thinking').open")
    assert page.text(".thinking summary").startswith("Thought for")
    assert facts(page)[2:] == ["6 tokens (6 thinking)", "still thinking at max tokens; raise Max tokens"]
    # The same question again, with what the settings say by now.
    page.value("document.querySelector('#max-tokens').value = 1024")
    page.click(".remedy")
    page.wait("!document.querySelector('#stop').hidden")
    finished(page)
    assert page.value("document.querySelectorAll('.exchange').length") == 1
    one, two = played.asked
    assert one["messages"] == two["messages"] and [one["max_tokens"], two["max_tokens"]] == [256, 1024]


def test_a_person_decides_whether_reasoning_is_open(page: Tab) -> None:
    say(page, "think")
    page.appears(".thinking")
    page.click(".thinking summary")
    page.click(".thinking summary")
    page.wait("document.querySelector('.answer .text').textContent")
    finished(page)
    assert page.value("document.querySelector('.thinking').open")


def test_reasoning_that_is_stopped(page: Tab, played: Played) -> None:
    say(page, "think and ponder")
    page.wait("document.querySelector('.answer .thoughts')?.textContent.length > 20")
    page.click("#stop")
    finished(page)
    assert played.hung_up.wait(PATIENCE_S)
    assert facts(page)[-1] == "stopped" and page.text(".thinking summary").startswith("Thought for")
    assert page.value("document.querySelector('.remedy, .reasoning')") is None


def test_reasoning_is_not_folded_away_from_under_a_person_who_reads_it(
    page: Tab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.server.played.THOUGHTS", ["One line.\n"] * 40)
    page.resize(1440, 500)
    say(page, "think")
    scroll = "document.querySelector('#scroll')"
    page.wait(f"{scroll}.scrollHeight > 1.5 * {scroll}.clientHeight")
    # Again and again, as a wheel does: text that comes between a turn and its event takes the first one back.
    page.wait(f"({scroll}.scrollTop = 0, !document.querySelector('#newest').hidden)")
    page.wait("document.querySelector('.answer .text').textContent")
    finished(page)
    assert page.value("document.querySelector('.thinking').open") and page.value(f"{scroll}.scrollTop") == 0
