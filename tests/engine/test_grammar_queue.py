"""Forms are compiled ahead of the steps: requests wait for theirs outside the engine, and no step compiles any."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from archerfish import LLM
from archerfish.box import models_in_box
from archerfish.engine.grammar_queue import GrammarCompileQueue
from archerfish.engine.input_processor import InputProcessor
from archerfish.engine.process import Channel, EngineLoop
from archerfish.engine.wire import Cancel, FromEngine, Stepped, Stop, ToEngine
from archerfish.request import FinishReason, Request, SamplingParams, Structured, TokenEvent
from archerfish.sampling import grammar_cache
from archerfish.sampling.grammar_cache import GrammarCache
from archerfish.tokenizer import Tokenizer


def request(request_id: str, structured: Structured | None, **more: int) -> Request:
    params = SamplingParams(structured=structured, temperature=0, **more)
    return Request(request_id=request_id, prompt_token_ids=(5, 6), params=params, arrival_time=0.0)


def number(size: int) -> Structured:
    return Structured(regex=f"[0-9]{{{size}}}")


def end(request_id: str, index: int = 0) -> TokenEvent:
    return TokenEvent(request_id, index, [7], finish_reason=FinishReason.STOP)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(Path(models_in_box()["minnow"]))


@pytest.fixture
def forms(tokenizer: Tokenizer) -> GrammarCache:
    return GrammarCache(tokenizer, tokenizer.vocab_size, (0,))


class Waiting:
    """GrammarCompileQueue, and the moment at which it tells."""

    def __init__(self, forms: GrammarCache | None) -> None:
        self._told = threading.Semaphore(0)
        self.preparation = GrammarCompileQueue(forms, self._told.release)

    def ready(self) -> list[str]:
        assert self._told.acquire(timeout=60)
        return [one.request_id for one in self.preparation.ready()]


def test_only_the_first_of_a_form_waits(forms: GrammarCache) -> None:
    waiting = Waiting(forms)
    assert not waiting.preparation.begin(request("free", None))
    assert waiting.preparation.begin(request("first", number(4)))
    assert waiting.ready() == ["first"]
    assert not waiting.preparation.begin(request("second", number(4)))
    assert list(waiting.preparation.ready()) == []


def test_one_that_was_given_up_does_not_come_back(forms: GrammarCache) -> None:
    waiting = Waiting(forms)
    assert waiting.preparation.begin(request("a", number(4)))
    waiting.preparation.forget("a")
    assert waiting.ready() == []


def test_without_a_tokenizer_nothing_waits() -> None:
    assert not Waiting(None).preparation.begin(request("a", number(4)))


def test_forms_of_open_requests_stay_compiled_however_many_there_are(
    forms: GrammarCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_cache, "_MAX_RECENT", 2)
    waiting = Waiting(forms)
    for size in range(1, 6):
        assert waiting.preparation.begin(request(str(size), number(size), n=2))
        assert waiting.ready() == [str(size)]
    assert all(forms.find(number(size)) is not None for size in range(1, 6))
    for size in range(1, 5):
        waiting.preparation.ended([end(str(size), 0)])
        waiting.preparation.ended([end(str(size), 1)])
    waiting.preparation.ended([end("5", 0)])
    assert forms.find(number(5)) is not None, "one of its answers is still being written"
    assert [size for size in range(1, 5) if forms.find(number(size)) is not None] == [4]


def test_a_form_that_cannot_be_is_told_to_whoever_asked(forms: GrammarCache) -> None:
    form = forms.get(Structured(grammar="start: nothing"))
    assert form.new_matcher() is None and "nothing" in form.problem


class ScriptedChannel(Channel):
    """Messages that come one by one, each after the engine has answered the last; a bell that rings for real."""

    def __init__(self, script: Iterator[ToEngine]) -> None:
        self._script = script
        self._is_answered = True
        self._rung = threading.Semaphore(0)
        self.events: list[TokenEvent] = []

    def send(self, message: FromEngine) -> None:
        if isinstance(message, Stepped):
            self.events += message.events
            self._is_answered = self._is_answered or any(event.finish_reason for event in message.events)

    def receive(self, timeout_ms: int) -> ToEngine | None:
        if self._is_answered:
            message = next(self._script, None)
            self._is_answered = not isinstance(message, Request)
            return message
        if timeout_ms:
            assert self._rung.acquire(timeout=60)
        return None

    def wake(self) -> None:
        self._rung.release()

    def close(self) -> None:
        pass


def test_no_step_compiles_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    compile_grammar = grammar_cache.compile_grammar

    def noting(*arguments: object) -> object:
        threads.append(threading.current_thread().name)
        return compile_grammar(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(grammar_cache, "compile_grammar", noting)
    with LLM("minnow", threads=1, max_num_seqs=2) as llm:
        script: list[ToEngine] = [
            request("a", number(3)),
            Cancel("a"),
            request("b", number(3)),
            request("c", number(2)),
            Stop(),
        ]
        channel = ScriptedChannel(iter(script))
        EngineLoop(llm.assembly.engine, channel, llm.assembly.grammars, iter(()), heartbeat_ms=1000).run()
        texts = {}
        for event in channel.events:
            texts.setdefault(event.request_id, []).extend(event.token_ids)
        processor: InputProcessor = llm.assembly.processor
        assert processor.tokenizer is not None
        told = {name: processor.tokenizer.decode(tokens).strip() for name, tokens in texts.items()}
    assert {name: len(text) for name, text in told.items()} == {"a": 3, "b": 3, "c": 2}
    assert len(threads) == 2 and all(name.startswith("grammars") for name in threads)
