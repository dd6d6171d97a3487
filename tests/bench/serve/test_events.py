"""How many tokens came at which moment, however a server packs them."""

import pytest

from archerfish.bench.serve.events import StreamedAnswer
from tests.bench.serve.scripted_server import DONE, delta, end, event, text, usage


def _times(*pieces: tuple[float, str]) -> tuple[float, ...]:
    answer = StreamedAnswer()
    for time, data in pieces:
        answer.feed(data.encode(), time)
    assert answer.error is None
    return answer.token_times()


def test_without_counts_each_event_is_a_token() -> None:
    assert _times((1, text("a")), (2, text("b") + text("c")), (3, end() + DONE)) == (1, 2, 2)


def test_longer_texts_are_more_of_the_tokens_that_the_server_counted() -> None:
    assert _times((1, text("a")), (2, text("bb cc dd")), (3, text("e")), (4, end() + usage(1, 5))) == (1, 2, 2, 2, 3)


def test_the_token_that_ends_an_answer_has_no_text() -> None:
    assert _times((1, text("a")), (2, text("b")), (3, end("stop")), (4, usage(1, 3))) == (1, 2, 3)
    assert _times((1, text("a")), (2, text("bbbb")), (3, end("length")), (4, usage(1, 3))) == (1, 2, 2)


def test_more_events_than_tokens_keep_the_first_and_the_last() -> None:
    pieces = [(float(place), text("x")) for place in range(9)]
    assert _times(*pieces, (9.0, end() + usage(1, 5))) == (0, 2, 4, 6, 8)
    assert _times(*pieces, (9.0, end() + usage(1, 1))) == (0,)


def test_a_server_that_counts_as_it_goes_is_believed() -> None:
    def counted(value: str, total: int) -> str:
        return text(value, usage={"prompt_tokens": 4, "completion_tokens": total})

    assert _times((1, counted("long text first", 1)), (2, counted("b", 4)), (3, usage(4, 4))) == (1, 2, 2, 2)


@pytest.mark.parametrize("total", range(1, 40))
def test_as_many_times_as_tokens_and_never_backward(total: int) -> None:
    pieces = [(float(place), text("x" * (1 + place * 7 % 5))) for place in range(11)]
    times = _times(*pieces, (11.0, end() + usage(1, total)))
    assert len(times) == total
    assert list(times) == sorted(times)
    assert times[0] == 0 and (total == 1 or times[-1] == 10)


@pytest.mark.parametrize(
    ("texts", "first"),
    [
        (["Hello"], 0),
        (["", " ", "\n", "Hello"], 3),
        (["<think>", "hmm", "</think>", "\n\n", "Hello"], 4),
        (["\n<thi", "nk>hm</th", "ink>Hello"], 2),
        (["<", "b>"], 1),
        (["<think>never ends", "..."], None),
        (["<think></think>", "<think>"], None),
    ],
)
def test_reasoning_in_the_text_is_hidden(texts: list[str], first: int | None) -> None:
    answer = StreamedAnswer()
    for time, value in enumerate(texts):
        answer.feed(delta(content=value).encode(), time)
    assert answer.first_visible == first


def test_tool_calls_are_visible() -> None:
    answer = StreamedAnswer()
    answer.feed(delta(tool_calls=[{"index": 0, "function": {"name": "f", "arguments": ""}}]).encode(), 1.0)
    assert (answer.first_visible, answer.token_times()) == (1.0, (1.0,))


def test_comments_names_and_other_line_ends() -> None:
    answer = StreamedAnswer()
    answer.feed(b": keep alive\r\n\r\nevent: x\r\nid: 4\r\ndata:" + text("a")[5:].replace("\n", "\r\n").encode(), 1.0)
    answer.feed(b"data:[DONE]\r\n\r\n", 2.0)
    assert answer.token_times() == (1.0,) and answer.is_done and answer.error is None


def test_an_error_in_the_stream() -> None:
    answer = StreamedAnswer()
    answer.feed(event(error={"message": "out of\nmemory", "code": 500}).encode(), 1.0)
    assert answer.error == "out of memory"
