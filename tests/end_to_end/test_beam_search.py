"""Beam search against the textbook's, over whole distributions, and against transformers' own."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from archerfish import LLM, BeamSearchParams
from archerfish.errors import InvalidParameter, PromptTooLong
from tests.checkpoints import write_checkpoint

PROMPT = [5, 17, 100, 42, 7]
OTHER = [9, 200, 31]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def llm(directory: Path) -> Iterator[LLM]:
    with LLM(directory, threads=1, max_num_seqs=8, check_invariants=True) as llm:
        yield llm
        assert llm.assembly.engine.scheduler.tables.pool.num_in_use == 0, "a beam left blocks behind"


@pytest.fixture(scope="module")
def model(directory: Path) -> Any:
    import transformers

    return transformers.AutoModelForCausalLM.from_pretrained(directory, torch_dtype=torch.float32).eval()


@torch.no_grad()
def searched(
    model: Any, prompt: list[int], width: int, steps: int, ends: set[int], penalty: float
) -> list[tuple[float, list[int]]]:
    """(score, tokens) of the best answers: every continuation of every beam is looked at."""
    beams, complete = [(0.0, list(prompt))], []
    for _ in range(steps):
        extended = []
        for total, tokens in beams:
            logprobs = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            for token, logprob in enumerate(logprobs.tolist()):
                found = (total + logprob, [*tokens, token])
                (complete if token in ends else extended).append(found)
        beams = sorted(extended, reverse=True)[:width]
    scored = [(total / (len(tokens) - len(prompt)) ** penalty, tokens) for total, tokens in complete + beams]
    return sorted(scored, reverse=True)[:width]


@pytest.mark.parametrize("width", [1, 3, 5])
@pytest.mark.parametrize(
    ("ignore_eos", "penalty"), [(True, 1.0), (False, 1.0), (False, 0.0), (False, 2.5), (False, -1)]
)
def test_the_answers_are_those_of_a_search_through_everything(
    llm: LLM, model: Any, width: int, ignore_eos: bool, penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In a tiny random model no token is likely; with several ends some of them are found.
    ends = frozenset(range(0, 300, 7))
    scheduler = llm.assembly.engine.scheduler
    monkeypatch.setattr(scheduler, "limits", replace(scheduler.limits, eos_token_ids=tuple(ends)))
    params = BeamSearchParams(width, 5, ignore_eos=ignore_eos, length_penalty=penalty)
    outputs = llm.beam_search([PROMPT, OTHER], params)
    for prompt, output in zip((PROMPT, OTHER), outputs, strict=True):
        wanted = searched(model, prompt, width, 5, set() if ignore_eos else set(ends), penalty)
        assert [one.tokens for one in output.sequences] == [tokens for _, tokens in wanted]
        for one, (score, tokens) in zip(output.sequences, wanted, strict=True):
            assert one.score(penalty) == pytest.approx(score, abs=1e-4)
            written = tokens[len(prompt) :]
            assert len(one.logprobs) == len(written) and all(
                token in candidates for token, candidates in zip(written, one.logprobs, strict=True)
            )
            has_ended = not ignore_eos and written[-1] in ends
            assert (one.finish_reason, one.stop_reason) == (("stop", written[-1]) if has_ended else ("length", None))


def test_the_answers_are_those_of_transformers(llm: LLM, model: Any) -> None:
    wanted = model.generate(
        torch.tensor([PROMPT]),
        num_beams=4,
        num_return_sequences=4,
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
    )
    [output] = llm.beam_search(PROMPT, BeamSearchParams(beam_width=4, max_tokens=8, ignore_eos=True))
    assert [one.tokens for one in output.sequences] == wanted.sequences.tolist()
    scores = [one.score(1.0) for one in output.sequences]
    assert scores == pytest.approx(wanted.sequences_scores.tolist(), abs=1e-4)


def test_prompts_may_be_texts_and_searched_a_few_at_a_time(llm: LLM) -> None:
    params = BeamSearchParams(beam_width=2, max_tokens=4)
    prompts = ["The quick brown", {"prompt": "fox"}, {"prompt_token_ids": PROMPT}]
    together = llm.beam_search(prompts, params)
    found = llm.beam_search(prompts, params, concurrency_limit=2)
    assert [[one.tokens for one in output.sequences] for output in found] == [
        [one.tokens for one in output.sequences] for output in together
    ]
    tokenizer = llm.get_tokenizer()
    for output in together:
        for one in output.sequences:
            assert one.text == tokenizer.decode(one.tokens, skip_special_tokens=True)
    assert together[0].sequences[0].text is not None and together[0].sequences[0].text.startswith("The quick brown")
    assert llm.beam_search([], params) == []


def test_a_search_ends_where_the_context_does(llm: LLM) -> None:
    [output] = llm.beam_search([[5] * 253], BeamSearchParams(2, 50, ignore_eos=True))
    assert [(len(one.tokens), one.finish_reason) for one in output.sequences] == [(256, "length")] * 2
    with pytest.raises(PromptTooLong):
        llm.beam_search([[5] * 256], BeamSearchParams(2, 50))


def test_a_width_of_the_whole_vocabulary_is_no_error(llm: LLM, model: Any) -> None:
    [output] = llm.beam_search([PROMPT], BeamSearchParams(beam_width=290, max_tokens=2, ignore_eos=True))
    wanted = searched(model, PROMPT, 290, 2, set(), 1.0)
    assert [one.tokens for one in output.sequences][:20] == [tokens for _, tokens in wanted][:20]


def test_what_is_no_beam_search_is_refused(llm: LLM) -> None:
    for bad, named in (
        ({"params": {"beam_width": 2}}, "params"),
        ({"params": BeamSearchParams(2, 2), "concurrency_limit": 0}, "concurrency_limit"),
        ({"params": BeamSearchParams(2, 2), "lora_request": "x"}, "lora_request"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            llm.beam_search([PROMPT], **bad)  # type: ignore[arg-type]
        assert caught.value.name == named
