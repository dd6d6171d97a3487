"""Beginnings for perch to go on with: of every kind, short enough, and the same each time."""

from recipes.box.chat import ASSISTANT, END, USER
from recipes.box.mixture import Source
from recipes.box.prompts import _MOST_CHARACTERS, draw_prompts

STORY = "There was a fish who lived in a river, and every day it shot water at flies. "
LONG = "An extraordinarily long-winded description of uninteresting circumstances. "
TALK = f"{USER}What is April?{END}{ASSISTANT}A month.{END}{USER}And May?{END}{ASSISTANT}Another month.{END}"
ENDLESS = f"{USER}{LONG * 40}{END}{ASSISTANT}I see.{END}"


def sources() -> list[Source]:
    return [
        Source("stories", [STORY, LONG * 50], weight=1.0, final_weight=1.0),
        Source("talk", [TALK, ENDLESS], weight=1.0, final_weight=1.0),
    ]


def test_texts_conversations_and_what_users_say_come_by_turns() -> None:
    prompts = draw_prompts(sources(), 200, seed=0)
    assert len(prompts) == 200
    texts, talk, said = prompts[::5], prompts[1::5] + prompts[3::5], prompts[2::5] + prompts[4::5]
    for text in texts:
        assert STORY.startswith(text) or (LONG * 50).startswith(text)
    assert len(set(texts)) > 10, "they end anywhere"
    for one in said:
        assert one.startswith(USER) and one.endswith(f"{END}{ASSISTANT}")
        inner = one.removeprefix(USER).removesuffix(f"{END}{ASSISTANT}")
        assert STORY.startswith(inner) or (LONG * 50).startswith(inner)
    # Wherever the assistant has the word; never the one in which that comes too late.
    first, _, rest = TALK.partition(ASSISTANT)
    assert set(talk) == {first + ASSISTANT, first + ASSISTANT + rest.partition(ASSISTANT)[0] + ASSISTANT}


def test_they_are_short_enough() -> None:
    prompts = draw_prompts(sources(), 400, seed=0)
    longest = max(len(prompt) for prompt in prompts)
    assert _MOST_CHARACTERS / 2 < longest <= _MOST_CHARACTERS + len(USER + END + ASSISTANT)


def test_sources_have_the_shares_of_the_last_phase() -> None:
    more = Source("more", ["one two three"], weight=9.0, final_weight=0.0)
    assert not any(prompt.startswith("one") for prompt in draw_prompts([*sources(), more], 200, seed=0))


def test_the_same_seed_draws_the_same() -> None:
    assert draw_prompts(sources(), 50, seed=3) == draw_prompts(sources(), 50, seed=3)
    assert draw_prompts(sources(), 50, seed=3) != draw_prompts(sources(), 50, seed=4)
