"""Sampling parameters: every bad value is refused by name, and what people write is brought into one form."""

import math
import pickle
from copy import copy
from dataclasses import fields

import pytest

from archerfish.errors import InvalidParameter, UserError
from archerfish.request import SamplingParams, Speculation, Structured
from archerfish.sampling_params import BeamSearchParams, GuidedDecodingParams, StructuredOutputsParams

NOT_WHOLE = [1.5, 1.0, "3", math.nan, [1], True, False]
NOT_NUMBERS = ["0.5", math.nan, math.inf, -math.inf, [0.5], None, True, False, 1j]

BAD = {
    "n": [0, -1, 10**9, None, *NOT_WHOLE],  # A billion answers would fill any memory before the first is begun.
    "max_tokens": [0, -5, *NOT_WHOLE],
    "min_tokens": [-1, None, *NOT_WHOLE],
    "temperature": [-0.1, -1e-9, 10**400, *NOT_NUMBERS],
    "top_k": [-2, -100, None, *NOT_WHOLE],
    "top_p": [0.0, 0, -0.1, 1.0001, 2, *NOT_NUMBERS],
    "min_p": [-0.1, 1.0001, *NOT_NUMBERS],
    "repetition_penalty": [0.0, -1.0, 10**400, *NOT_NUMBERS],
    "presence_penalty": [-2.01, 2.01, *NOT_NUMBERS],
    "frequency_penalty": [-2.01, 2.01, *NOT_NUMBERS],
    "logit_bias": [
        {1: math.nan},
        {1: math.inf},
        {1: -math.inf},
        {1: "much"},
        {1: None},
        {"word": 1.0},
        {None: 1.0},
        {1.7: 1.0},
        [1, 2],
        "5",
        5,
    ],
    "allowed_token_ids": [(), [], 5],
    "stop": ["", [""], ["a", ""], [None], [5], 5, 0, b"end", ["a", b"b"]],
    "stop_token_ids": [5],
    "ignore_eos": ["false", "no", 2, None],
    "include_stop_str_in_output": ["false", 2, None],
    "skip_special_tokens": ["false", 2, None],
    "seed": [-1, 2**64, *NOT_WHOLE],
    "logprobs": [-1, *NOT_WHOLE],
    "prompt_logprobs": [-1, *NOT_WHOLE],
    "prompt_embedding": [1, "yes", None],
    "prompt_states": [1, "yes", None],
    "detokenize": [0, "no", None],
    "spaces_between_special_tokens": [0, "no", None],
    "best_of": [0, -1, 10**9, *NOT_WHOLE],
    "truncate_prompt_tokens": [0, -2, 10**400, *NOT_WHOLE],
    "bad_words": ["", "word", [""], [" "], [None], [5], 5, [b"word"], ["a" * 1001], ["a"] * 1001],
    "bad_words_token_ids": [5, [5], [[]], [[1], []], [[1] * 1001], [[1]] * 1001],
    "output_kind": [0, "DELTA", None, True],
    "structured_outputs": ["json", [], 1, True, {}, {"regex": "a", "choice": ["b"]}, {"jsn": {}}],
    "guided_decoding": ["json", [], 1, True, {}, {"regex": "a", "choice": ["b"]}, {"regex": "a", "backend": "x"}],
    "structured": ["json", {"regex": "a"}, 1, True],
    "speculation": ["off", {"method": "off"}, 1, True],
}


BAD_TOKEN_IDS = [[1000], [0, 1000], [-1], [5, -1], [1.0], [1.5], ["a"], "12", [None], [True], [10**30]]


def test_every_parameter_has_values_that_are_tried_here():
    assert set(BAD) == {field.name for field in fields(SamplingParams)}


TRIED = [(name, value) for name, values in BAD.items() for value in values]


@pytest.mark.parametrize(("name", "value"), TRIED, ids=lambda part: repr(part)[:30])
def test_a_bad_value_is_refused_and_named(name, value):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value})
    assert isinstance(caught.value, UserError)
    if isinstance(value, dict) and name in ("structured_outputs", "guided_decoding"):
        return  # The error is about what is in it.
    assert caught.value.name == name
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {1000: 1.0}),
        ("logit_bias", {-1: 1.0}),
        *((name, ids) for name in ("allowed_token_ids", "stop_token_ids") for ids in BAD_TOKEN_IDS),
        ("logprobs", 1001),
        ("prompt_logprobs", 1001),
        ("bad_words_token_ids", [[5, 1000]]),
        ("bad_words_token_ids", [[-1]]),
    ],
    ids=str,
)
def test_token_ids_the_model_does_not_have_are_refused_and_named(name, value):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: value}).check_token_ids(1000)
    assert caught.value.name == name


def test_the_first_and_last_token_of_the_model_can_be_named():
    SamplingParams(
        logit_bias={0: 1.0, 999: -1.0},
        allowed_token_ids=(0, 999),
        stop_token_ids=(0, 999),
        logprobs=1000,
        prompt_logprobs=0,
    ).check_token_ids(1000)


def test_more_tokens_at_least_than_at_most_are_refused():
    with pytest.raises(InvalidParameter, match=r"min_tokens = 17.*max_tokens = 16"):
        SamplingParams(min_tokens=17)
    assert SamplingParams(min_tokens=16).min_tokens == 16
    assert SamplingParams(min_tokens=10_000, max_tokens=None).min_tokens == 10_000


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"temperature": 100.0},
        {"top_p": 1},
        {"top_p": 1e-9},
        {"min_p": 1},
        {"min_p": 0},
        {"top_k": 10**6},
        {"repetition_penalty": 0.01},
        {"presence_penalty": -2, "frequency_penalty": 2},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"max_tokens": None},
        {"max_tokens": 1},
        {"logprobs": 0, "prompt_logprobs": 0},
        {"logit_bias": {5: -100}},
        {"n": 128},
        {"best_of": 1},
        {"best_of": 1024},
        {"truncate_prompt_tokens": -1},
        {"truncate_prompt_tokens": 1},
    ],
    ids=str,
)
def test_values_at_the_edge_of_what_is_allowed_are_taken(values):
    params = SamplingParams(**values)
    for name, value in values.items():
        assert getattr(params, name) == value


def test_an_unknown_parameter_is_refused_with_the_known_ones():
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams.from_dict({"temperature": 0.5, "temprature": 0.7})
    assert caught.value.name == "temprature"
    for field in fields(SamplingParams):
        assert field.name in str(caught.value)


@pytest.mark.parametrize("name", ["use_beam_search", "_check", "is_greedy", "from_dict", ""])
def test_what_is_not_a_field_is_not_a_parameter(name):
    with pytest.raises(InvalidParameter):
        SamplingParams.from_dict({name: 1})


def test_a_bad_value_in_a_dictionary_is_named_like_any_other():
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams.from_dict({"top_p": 0})
    assert caught.value.name == "top_p"


def test_a_dictionary_gives_the_same_parameters_as_keywords():
    values = {"temperature": 0.3, "stop": ["a"], "logit_bias": {"7": 1}, "seed": 5}
    assert SamplingParams.from_dict(values) == SamplingParams(**values)
    assert SamplingParams.from_dict({}) == SamplingParams()


@pytest.mark.parametrize("stop", ["end", ["end"], ("end",)])
def test_one_stop_text_may_come_alone(stop):
    assert SamplingParams(stop=stop).stop == ("end",)


def test_lists_become_tuples_and_nothing_becomes_none_of_them():
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2], allowed_token_ids=[3, 4])
    assert (params.stop, params.stop_token_ids, params.allowed_token_ids) == (("a", "b"), (1, 2), (3, 4))
    params = SamplingParams(stop=None, stop_token_ids=None, logit_bias=None, allowed_token_ids=None)
    assert (params.stop, params.stop_token_ids, params.logit_bias, params.allowed_token_ids) == ((), (), {}, None)


def test_a_bias_may_name_tokens_as_json_does():
    assert SamplingParams(logit_bias={"50256": -100}).logit_bias == {50256: -100.0}


def test_a_top_k_of_minus_one_keeps_all_as_zero_does():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, True), (1e-6, True), (1e-4, False), (1.0, False)])
def test_a_temperature_near_zero_is_greedy(temperature, greedy):
    assert SamplingParams(temperature=temperature).is_greedy is greedy


def test_a_change_is_checked_with_all_the_rest_and_an_error_changes_nothing():
    params = SamplingParams(min_tokens=2)
    params.max_tokens, params.stop, params.top_k = 3, "end", -1
    assert params == SamplingParams(min_tokens=2, max_tokens=3, stop=("end",), top_k=0)
    for name, value in (("temperature", -1.0), ("max_tokens", 1), ("temprature", 0.5), ("logits_processors", [print])):
        with pytest.raises(InvalidParameter, match=name if name != "max_tokens" else "min_tokens"):
            setattr(params, name, value)
        assert params == SamplingParams(min_tokens=2, max_tokens=3, stop="end")


@pytest.mark.parametrize("again", [copy, lambda params: pickle.loads(pickle.dumps(params))], ids=["copy", "pickle"])
def test_copies_are_equal_and_do_not_follow_changes(again):
    params = SamplingParams(seed=5, bad_words=["a"], structured_outputs={"regex": "a+"})
    other = again(params)
    assert other == params
    params.seed = 6
    assert other.seed == 5


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("logits_processors", "use logit_bias, allowed_token_ids, bad_words or structured_outputs"),
        ("use_beam_search", "LLM.beam_search"),
        ("guided_json", "StructuredOutputsParams"),
        ("thinking_token_budget", "max_tokens"),
    ],
)
def test_what_other_engines_take_is_refused_with_what_takes_its_place(name, says):
    with pytest.raises(InvalidParameter, match=says) as caught:
        SamplingParams(**{name: [print]})
    assert caught.value.name == name


@pytest.mark.parametrize(
    "neutral",
    [
        {"extra_args": None, "thinking_token_budget": None, "logits_processors": None, "guided_json": None},
        {"logits_processors": [], "flat_logprobs": False, "use_beam_search": False, "length_penalty": 1.0},
        {"extra_args": {}, "skip_reading_prefix_cache": False},
    ],
)
def test_what_other_engines_take_may_be_given_where_it_requests_nothing(neutral):
    assert SamplingParams(temperature=0.5, **neutral) == SamplingParams(temperature=0.5)
    with pytest.raises(InvalidParameter, match="temprature"):
        SamplingParams(temprature=None, **neutral)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("logprobs", "up to the size of the vocabulary"),
        ("prompt_logprobs", "up to the size of the vocabulary"),
        ("seed", "no seed; leave it out"),
    ],
)
def test_minus_one_is_refused_with_what_it_means_in_vllm(name, says):
    with pytest.raises(InvalidParameter, match=f"{name} = -1 .*vLLM reads -1 as .*{says}"):
        SamplingParams(**{name: -1})


def test_parameters_are_cloned_and_made_of_optional_values_as_in_vllm():
    params = SamplingParams(seed=5, logit_bias={3: 1.0}, stop="end")
    clone = params.clone()
    assert clone == params and clone.logit_bias is not params.logit_bias
    clone.seed = 6
    assert params.seed == 5
    given = {"n": None, "temperature": 0.5, "presence_penalty": None, "stop": None, "logits_processors": None}
    assert SamplingParams.from_optional(**given) == SamplingParams(temperature=0.5)
    assert SamplingParams.from_optional(max_tokens=None).max_tokens is None
    with pytest.raises(InvalidParameter, match="temperature"):
        SamplingParams.from_optional(temperature=-1.0)


def test_the_best_answers_are_some_of_those_that_are_written():
    with pytest.raises(InvalidParameter, match=r"best_of = 2.*n = 3"):
        SamplingParams(n=3, best_of=2)
    assert SamplingParams(n=3, best_of=3).best_of == 3


def test_stop_texts_need_text():
    with pytest.raises(InvalidParameter, match="stop_token_ids"):
        SamplingParams(stop="end", detokenize=False)


@pytest.mark.parametrize("name", ["structured_outputs", "guided_decoding"])
def test_the_form_of_an_answer_has_the_names_that_vllm_has_for_it(name):
    kind = StructuredOutputsParams if name == "structured_outputs" else GuidedDecodingParams
    wanted = SamplingParams(structured=Structured(regex="a+"))
    assert SamplingParams(**{name: kind(regex="a+")}) == SamplingParams(**{name: {"regex": "a+"}}) == wanted
    with pytest.raises(InvalidParameter, match="given twice"):
        SamplingParams(structured=Structured(regex="a+"), **{name: kind(regex="a+")})
    setattr(wanted, name, kind(choice=["a"]))
    assert wanted.structured == Structured(choice=("a",))


@pytest.mark.parametrize("name", ["suffix", "ngram", "reference"])
def test_looking_up_what_followed_before_has_several_names(name):
    assert Speculation(method=name) == Speculation(method="suffix")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"beam_width": 0, "max_tokens": 1}, "beam_width"),
        ({"beam_width": True, "max_tokens": 1}, "beam_width"),
        ({"beam_width": 10**9, "max_tokens": 1}, "beam_width"),
        ({"beam_width": 1, "max_tokens": 0}, "max_tokens"),
        ({"beam_width": 1, "max_tokens": 1, "temperature": 0.5}, "temperature"),
        ({"beam_width": 1, "max_tokens": 1, "length_penalty": math.inf}, "length_penalty"),
        ({"beam_width": 1, "max_tokens": 1, "length_penalty": math.nan}, "length_penalty"),
        ({"beam_width": 1, "max_tokens": 1, "ignore_eos": 1}, "ignore_eos"),
        ({"beam_width": 1, "max_tokens": 1, "include_stop_str_in_output": True}, "include_stop_str_in_output"),
    ],
)
def test_a_bad_value_of_a_beam_search_is_refused_and_named(values, named):
    with pytest.raises(InvalidParameter) as caught:
        BeamSearchParams(**values)
    assert caught.value.name == named


def test_a_beam_search_is_written_as_in_vllm():
    assert BeamSearchParams(4, 16) == BeamSearchParams(beam_width=4, max_tokens=16, temperature=0.0, ignore_eos=False)


def test_what_a_client_changes_later_does_not_change_the_parameters():
    bias, stops, allowed = {1: 1.0}, ["a"], [1]
    params = SamplingParams(logit_bias=bias, stop=stops, allowed_token_ids=allowed)
    bias[2] = math.nan
    stops.append("")
    allowed.clear()
    assert (params.logit_bias, params.stop, params.allowed_token_ids) == ({1: 1.0}, ("a",), (1,))


def test_the_message_has_the_value_and_what_would_be_allowed():
    with pytest.raises(InvalidParameter, match=r"temperature = -1.* at least 0"):
        SamplingParams(temperature=-1)
    with pytest.raises(InvalidParameter, match=r"top_p = 0.*above 0 and at most 1"):
        SamplingParams(top_p=0)
    with pytest.raises(InvalidParameter, match=r"n = 0.*at least 1"):
        SamplingParams(n=0)
