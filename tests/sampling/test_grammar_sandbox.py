"""Forms are tried where they can do no harm: whatever a client sends, the answer is quick and says what is wrong."""

import gc
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Vocabulary
from tokenizers import models, pre_tokenizers

from archerfish.box import models_in_box
from archerfish.errors import InvalidParameter, RequestError
from archerfish.request import Structured
from archerfish.sampling import grammar_sandbox as sandbox_module
from archerfish.sampling.grammar_compiler import load_vocabulary
from archerfish.sampling.grammar_sandbox import GrammarSandbox, check_structured
from archerfish.tokenizer import Tokenizer

GOOD = Structured(regex="[0-9]{4}")


def schema(value: Any) -> Structured:
    return Structured(json_schema=json.dumps(value))


def chain(length: int) -> Structured:
    """Rules that each name the next: a compiler descends as far."""
    rules = "\n".join(f'r{i}: r{i + 1} "x"' for i in range(length))
    return Structured(grammar=f'start: r0\n{rules}\nr{length}: "a"')


def references(length: int) -> Structured:
    named = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return schema({"$ref": "#/$defs/d0", "$defs": {**named, f"d{length}": {}}})


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(models_in_box()["perch"])


@pytest.fixture(scope="module")
def sandbox(tokenizer: Tokenizer) -> GrammarSandbox:
    return GrammarSandbox(tokenizer, tokenizer.vocab_size)


HOSTILE = {
    "each of 24 expressions must match": schema(
        {"allOf": [{"type": "string", "pattern": f"a.*{i}"} for i in range(24)]}
    ),
    "every choice of every part": schema(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"type": "null"}}} for j in range(4)]} for i in range(16)]}
    ),
    "a long expression of wide classes": Structured(regex=r"(\pL?\w?)" * 3000),
    "nested terminals": Structured(
        grammar="start: R0\n" + "\n".join(f'R{i}: ("x"? R{i + 1})+' for i in range(8000)) + '\nR8000: "a"'
    ),
    "brackets in brackets": Structured(regex="(" * 100_000 + "a" + ")" * 100_000),
    "brackets in brackets, GBNF": Structured(grammar="root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000),
    "a billion times": Structured(regex="a{1000000000}"),
    "a thousand times, three times over": Structured(regex="(((a{1000}){1000}){1000})"),
    "up to a hundred times, twice over": Structured(regex="((a|b){0,100}){0,100}"),
    "schemas in schemas": Structured(json_schema='{"items":' * 20_000 + "{}" + "}" * 20_000),
}


@pytest.mark.parametrize("form", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_form_is_refused_and_others_go_on(sandbox: GrammarSandbox, form: Structured) -> None:
    with pytest.raises(InvalidParameter, match=form.given):
        sandbox.check(form)
    sandbox.check(GOOD)


@pytest.mark.parametrize("form", [Structured(regex="a{1000000000}"), Structured(regex="(((a{1000}){1000}){1000})")])
def test_what_compiles_but_cannot_be_followed_is_refused_with_the_remedy(
    sandbox: GrammarSandbox, form: Structured
) -> None:
    with pytest.raises(InvalidParameter, match=r"too large to be followed .*; repeat less: x\{1000\} is fine"):
        sandbox.check(form)


@pytest.mark.parametrize("regex", ["a{1000}", "[a-z]{1,10000}", "(ab|c){500}", "((a{100}){100})", r"(\w+ ){3,200}\."])
def test_what_repeats_within_reason_is_a_form(sandbox: GrammarSandbox, regex: str) -> None:
    sandbox.check(Structured(regex=regex))


@pytest.mark.parametrize("form", [chain(12_000), references(4_000)], ids=["rules", "references"])
def test_what_descends_deeply_ends_no_process(sandbox: GrammarSandbox, form: Structured) -> None:
    """Each of these ends a process that compiles it on an ordinary stack."""
    for check in (sandbox.check, check_structured):
        try:
            check(form)
        except InvalidParameter as refused:
            assert "too big" in str(refused)
    sandbox.check(GOOD)


@pytest.mark.parametrize(
    ("form", "named"),
    [
        (Structured(json_schema="{"), "EOF"),
        (schema({"type": "text"}), "text"),
        (schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema({"allOf": [{"type": "string"}, {"type": "integer"}]}), "Unsatisfiable"),
        (Structured(regex="a(?=b)"), "look-ahead"),
        (Structured(regex=r"(a)\1"), "backreferences"),
        (Structured(regex="a{2,1}"), "range"),
        (Structured(grammar="start: nothing"), "nothing"),
        (Structured(grammar="root ::= nothing"), "nothing"),
        (Structured(choice=("\ud800",)), "escape"),
    ],
)
def test_the_reason_is_told_with_and_without_a_model(sandbox: GrammarSandbox, form: Structured, named: str) -> None:
    for check in (sandbox.check, check_structured):
        with pytest.raises(InvalidParameter) as caught:
            check(form)
        assert form.given in str(caught.value) and named in str(caught.value)


def test_what_only_a_vocabulary_shows(sandbox: GrammarSandbox) -> None:
    sandbox.check(Structured(grammar='start: "a" <|end|>'))
    with pytest.raises(InvalidParameter, match=r"<\|nope\|>"):
        sandbox.check(Structured(grammar='start: "a" <|nope|>'))
    with pytest.raises(InvalidParameter, match="no text matches it"):
        sandbox.check(Structured(grammar='start: start "a"'))


def test_what_many_properties_allow_is_tried_on_a_slow_machine_too(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = {f"property_{i}": {"type": "string", "pattern": f"^[a-z]{{3}}-{i}$"} for i in range(1500)}
    monkeypatch.setattr(sandbox_module, "_TRIED_SECONDS", 0.0)
    vocabulary = load_vocabulary(tokenizer.to_json(), tokenizer.vocab_size, [0])
    problem = sandbox_module._problem(schema({"type": "object", "properties": properties}), vocabulary)
    assert problem is not None and "fewer optional properties" in problem
    required = {"type": "object", "properties": properties, "required": list(properties)}
    assert sandbox_module._problem(schema(required), vocabulary) is None


def test_a_tokenizer_that_the_library_cannot_use_is_named(tmp_path: Path) -> None:
    words = Vocabulary(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    sandbox = GrammarSandbox(Tokenizer.load(tmp_path), 2)
    for _ in range(2):
        with pytest.raises(InvalidParameter, match="this model's tokenizer"):
            sandbox.check(GOOD)


def test_many_may_ask_at_once(sandbox: GrammarSandbox) -> None:
    forms = [Structured(regex=f"a{{{i}}}") for i in range(1, 40)] + [Structured(regex="(")]

    def problem(form: Structured) -> str | None:
        try:
            sandbox.check(form)
        except InvalidParameter as error:
            return str(error)
        return None

    with ThreadPoolExecutor(8) as pool:
        problems = list(pool.map(problem, forms))
    assert problems[:-1] == [None] * 39 and problems[-1] is not None


def test_the_process_ends_with_its_trial(tokenizer: Tokenizer) -> None:
    sandbox = GrammarSandbox(tokenizer, tokenizer.vocab_size)
    sandbox.check(GOOD)
    assert sandbox._worker is not None
    process = sandbox._worker.process
    assert process.poll() is None
    del sandbox
    gc.collect()
    assert process.poll() == 0


def test_a_process_that_hangs_is_ended_and_the_next_question_answered(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "_MAX_WAIT", 0.5)
    sandbox = GrammarSandbox(tokenizer, tokenizer.vocab_size)
    sandbox._worker = sandbox._start()
    os.kill(sandbox._worker.process.pid, signal.SIGSTOP)
    with pytest.raises(RequestError, match=r"could not be tried within 0\.5 seconds; try again"):
        sandbox.check(GOOD)
    monkeypatch.undo()
    sandbox.check(GOOD)


def test_a_machine_without_the_library_serves_everything_else() -> None:
    code = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name == "llguidance":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
from unittest.mock import patch
from archerfish import LLM, SamplingParams
from archerfish.errors import InvalidParameter, RequestError
from archerfish.request import Structured
llm = LLM(threads=1, max_num_seqs=2)
assert llm.generate("A", SamplingParams(max_tokens=3), progress=False)[0].outputs[0].token_ids
try:
    with patch("archerfish.sampling.grammar_sandbox.find_spec", return_value=None):
        llm.generate("A", SamplingParams(structured=Structured(regex="a")))
except InvalidParameter as error:
    assert "pip install llguidance" in str(error)
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr


def test_a_form_that_many_ask_for_at_once_is_tried_once(
    sandbox: GrammarSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []
    form = Structured(regex="[0-9]{7}")
    original = sandbox._try
    monkeypatch.setattr(sandbox, "_try", lambda structured: tried.append(structured) or original(structured))
    assert not sandbox.has_verdict(form)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: sandbox.check(form), range(16)))
    assert tried == [form] and sandbox.has_verdict(form)
