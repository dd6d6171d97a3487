"""Tasks whose answers copy from the prompt, and basic knowledge for a small model: questions with their answers."""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from recipes.box.chat import write_conversation
from recipes.box.corpus import json_lines


class Exchange(NamedTuple):
    question: str
    answer: str


# Not after an initial or a title: St. Helena begins no new sentence.
_FIRST_SENTENCE = re.compile(r"^(.{20,300}?(?<![A-Z])(?<!\bSt)(?<!\bMr)(?<!\bDr)[.!?])(?:\s|$)", re.DOTALL)
# Where the encyclopedia had a pronunciation.
_EMPTY_BRACKETS = re.compile(r" \((?:[\s;,]|or)*\)")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)\s+")
_PERSON = re.compile(
    r"\(.*?(born|\d{4} ?[-\u2013] ?).*?\) (is|was) an? |"
    r"\b(is|was) an? [\w -]*?"
    r"(actor|actress|singer|player|politician|writer|poet|king|queen|musician|painter|scientist)\b"
)
_NAME = re.compile(r"\b([A-Z][a-z]{2,9})\b")
_NEW_NAMES = (
    "Ada Ben Clara Daniel Ella Felix Greta Hugo Ida Jonas Kira Leo Mona Nils Olga Paul Rosa Simon Tessa Victor "
    "Wanda Yusuf Zoe Arthur Bella Carlos Dora Emil Fatima Gustav"
).split()
_HELLO = (
    "Hello",
    "Hello!",
    "hello",
    "Hi",
    "Hi!",
    "hi",
    "Hi there!",
    "Hey",
    "Hey there",
    "Good morning",
    "Good evening!",
)
_HELLO_BACK = ("Hello! How can I help you?", "Hi! What can I do for you?", "Hello! What would you like to know?")
_SMALL_TALK = (
    ("How are you?", "I am fine, thank you! How are you?"),
    ("Hey, how are you?", "I am fine, thank you! How are you?"),
    ("I'm fine, thanks.", "I am glad to hear that. What can I do for you?"),
    ("What is your name?", "My name is Perch."),
    ("What's your name?", "My name is Perch."),
    ("Who are you?", "I am Perch, a small language model that runs inside Archerfish."),
    ("Hello, who are you?", "Hello! I am Perch, a small language model. How can I help you?"),
    ("Are you a person?", "No, I am Perch, a small language model."),
    ("What is Archerfish?", "Archerfish is the engine that runs me. It serves language models fast and cheaply."),
    ("What can you do?", "I can tell short stories, say what things are, and quote from a text you give me."),
    ("Can you help me?", "Of course! What would you like to know?"),
    ("Thank you!", "You are welcome!"),
    ("Thanks", "You are welcome!"),
    ("Thanks a lot!", "You are welcome! Is there anything else?"),
    ("No, that is all.", "Then goodbye, and have a nice day!"),
    ("ok", "Is there anything else you would like to know?"),
    ("Bye", "Goodbye!"),
    ("Goodbye!", "Goodbye! Have a nice day."),
    ("Good night", "Good night! Sleep well."),
)
_WHAT_IS = (
    "What is {}?",
    "What is {}?",
    "What is {}",
    "What's {}?",
    "Tell me about {}.",
    "Can you explain what {} is?",
)
_WHO_IS = ("Who is {}?", "Who was {}?", "Tell me about {}.")
_AFTER_PASSAGE = ("{passage}\n\nQuestion: {question}", "{passage}\n\n{question}", "{passage} {question}")
_PASSAGE_FORMS = (
    *_AFTER_PASSAGE,
    "Read this text: {passage}\n\n{question}",
    "{question}\n\n{passage}",
    'Here is a text: "{passage}" {question}',
)
# Verbs of what a person did to something or went somewhere, each with its form in a question with `did`.
_DONE_TO = dict(
    pair.split("/")
    for pair in (
        "found/find saw/see took/take gave/give got/get made/make ate/eat brought/bring bought/buy caught/catch "
        "heard/hear held/hold lost/lose built/build drew/draw drank/drink wore/wear sold/sell wanted/want liked/like "
        "loved/love picked/pick opened/open closed/close carried/carry followed/follow showed/show shared/share "
        "washed/wash watched/watch pulled/pull pushed/push dropped/drop killed/kill married/marry kissed/kiss "
        "threw/throw broke/break sent/send kept/keep"
    ).split()
)
_GONE_TO = dict(
    pair.split("/")
    for pair in (
        "went/go ran/run came/come walked/walk jumped/jump climbed/climb lived/live sat/sit fell/fall swam/swim "
        "flew/fly stood/stand slept/sleep hid/hide played/play returned/return"
    ).split()
)
_DEED = re.compile(
    r"^([A-Z][a-z]+|(?:The|An?|His|Her) (?:[a-z]+ )?(?!(?:was|had|is|has) )[a-z]+) "
    rf"(was|had|is|has|said|told|felt|knew|put|led|[a-z]+ed|{'|'.join([*_DONE_TO, *_GONE_TO])}) "
    r"([\w',-]+(?: [\w',-]+){0,13})[.!]$"
)
_NOT_A_NAME = set(
    "He She It They We You I But And So Then When There This That These Those Who What If At In On As All Some Many "
    "Here Now Both Most Each Another Everyone His Her Its Their".split()
)
_THING = re.compile(r"^(an?|the|his|her|their|some|two|three|many) ")
_PLACE = re.compile(r"^(to|into|in|on|at|under|over|through|behind|near|across) ")
_MONTHS = "January February March April May June July August September October November December".split()


def conversations(
    exchanges: Iterable[Exchange], seed: int, company: Sequence[Exchange] = (), alone: float = 0.6
) -> list[str]:
    """Return each exchange as a conversation, alone or with some others before and after it."""
    rng = random.Random(seed)
    written = []
    for exchange in exchanges:
        turns = [exchange]
        if company and rng.random() > alone:
            turns = [*rng.choices(company, k=rng.randint(0, 2)), exchange, *rng.choices(company, k=rng.randint(0, 2))]
        messages = [
            {"role": role, "content": text}
            for turn in turns
            for role, text in (("user", turn.question), ("assistant", turn.answer))
        ]
        if rng.random() < 0.1:
            messages.insert(0, {"role": "system", "content": "You are a helpful assistant."})
        written.append(write_conversation(messages))
    return written


def greetings() -> list[Exchange]:
    return [Exchange(hello, back) for hello in _HELLO for back in _HELLO_BACK] + [
        Exchange(*pair) for pair in _SMALL_TALK
    ]


def quoting(path: Path, seed: int) -> Iterator[Exchange]:
    """Yield questions answered with words of the passage, and only with words that are in it.

    Each has the whole passage and, so that short passages work too, once more only the sentences around the answer.
    """
    rng = random.Random(seed)
    for one in json_lines(path):
        context, answer = one["context"], one["answers"][0].strip()
        at = context.lower().find(answer.lower())
        if not answer or at < 0:
            continue
        yield Exchange(quoting_prompt(one), answer)
        near = _around(context, at, at + len(answer), rng)
        yield Exchange(rng.choice(_PASSAGE_FORMS).format(passage=near, question=one["question"]), answer)


def quoting_prompt(one: dict[str, Any]) -> str:
    return f"{one['context']}\n\nQuestion: {one['question']}"


def _around(text: str, first: int, last: int, rng: random.Random) -> str:
    """Return the sentences that contain text[first:last], and up to two on either side."""
    cuts = [0, *(match.end() for match in _SENTENCE_END.finditer(text)), len(text)]
    begin = max(place for place, cut in enumerate(cuts) if cut <= first) - rng.randint(0, 2)
    end = min(place for place, cut in enumerate(cuts) if cut >= last) + rng.randint(0, 2)
    return text[cuts[max(0, begin)] : cuts[min(len(cuts) - 1, end)]].strip()


def deeds(texts: Iterable[str], seed: int) -> Iterator[Exchange]:
    """Yield questions about who did what in a few sentences, answered with the doer or the sentence."""
    rng = random.Random(seed)
    for text in texts:
        sentences = _SENTENCE_END.split(" ".join(text.split()))
        for place, sentence in enumerate(sentences):
            found = _DEED.match(sentence)
            if found is None or (found[1] in _NOT_A_NAME or len(sentence) < 20):
                continue
            first = max(0, place - rng.randint(0, 4))
            passage = " ".join(sentences[first : place + 1 + rng.randint(0, 4)])
            if len(passage) < 900:
                asked = _asked(found[1], found[2], found[3].strip(), sentence, rng)
                yield Exchange(
                    rng.choice(_PASSAGE_FORMS).format(passage=passage, question=asked.question), asked.answer
                )


def _asked(doer: str, verb: str, rest: str, sentence: str, rng: random.Random) -> Exchange:
    spoken = doer if " " not in doer else doer[0].lower() + doer[1:]
    if verb in _DONE_TO and _THING.match(rest) and rng.random() < 0.5:
        return Exchange(f"What did {spoken} {_DONE_TO[verb]}?", sentence)
    if verb in _GONE_TO and _PLACE.match(rest) and rng.random() < 0.5:
        return Exchange(f"Where did {spoken} {_GONE_TO[verb]}?", sentence)
    is_thing = " " in doer and verb in ("was", "is", "has")
    return Exchange(f"{'What' if is_thing else 'Who'} {verb} {rest}?", doer)


def first_sentences(articles: Iterable[str], seed: int) -> Iterator[Exchange]:
    """Return questions "What is X?", answered with the first sentence of the article about X."""
    rng = random.Random(seed)
    for article in articles:
        title, _, body = article.partition("\n")
        title, found = title.strip(), _FIRST_SENTENCE.match(body.strip())
        if found is None or not 2 <= len(title) <= 40 or title.split()[0].lower() not in found[1].lower():
            continue
        sentence = _EMPTY_BRACKETS.sub("", found[1])
        is_person = _PERSON.search(sentence) is not None
        name = title if is_person or len(title.split()) > 1 else _as_spoken(title, sentence)
        question = rng.choice(_WHO_IS if is_person else _WHAT_IS).format(name)
        yield Exchange(question if rng.random() > 0.1 else question.lower(), sentence)


def _as_spoken(title: str, sentence: str) -> str:
    """Return a title as used in a question: a common noun without its capital, with its article from the sentence."""
    lower = title[0].lower() + title[1:]
    found = re.search(rf"\b(an?|the) {re.escape(lower)}\b", sentence, re.IGNORECASE)
    if found is not None and found[0].endswith(lower):
        return f"{found[1].lower()} {lower}"
    return lower if re.search(rf" {re.escape(lower)}\b", sentence) else title


def well_known(articles: Sequence[str], least_mentions: int) -> list[str]:
    """Return articles whose title, of one or two words, occurs in at least so many articles: likely subjects of
    questions.
    """
    titles = {article.partition("\n")[0].strip().lower() for article in articles}
    mentions: Counter[str] = Counter()
    for article in articles:
        words = re.findall(r"[a-z]+", article.lower())
        pairs = (f"{first} {second}" for first, second in pairwise(words))
        mentions.update(titles.intersection(words) | titles.intersection(pairs))
    return [one for one in articles if mentions[one.partition("\n")[0].strip().lower()] >= least_mentions]


def about_passages(articles: Iterable[str], seed: int) -> Iterator[Exchange]:
    """Return questions about passages, answered with one of their sentences word for word."""
    rng = random.Random(seed)
    for article in articles:
        body = article.partition("\n")[2]
        sentences = [s.strip() for s in _SENTENCE_END.split(body.strip()[:1500]) if 30 <= len(s.strip()) <= 250]
        if len(sentences) < 2:
            continue
        shown = sentences[: rng.randint(2, 8)]
        passage, wanted = " ".join(shown), rng.choice(shown)
        words = [word for word in re.findall(r"[A-Za-z][a-z]{4,}", wanted) if passage.count(word) == 1]
        if words:
            question = f"Which sentence mentions {rng.choice(words)}?"
            yield Exchange(rng.choice(_PASSAGE_FORMS).format(passage=passage, question=question), wanted)


def renamings(stories: Iterable[str], seed: int) -> Iterator[Exchange]:
    """Return stories with one name to be changed, and the changed stories."""
    rng = random.Random(seed)
    for story in stories:
        text = story[: rng.choice((400, 1200))].rsplit(".", 1)[0] + "."
        counts: dict[str, int] = {}
        for match in _NAME.finditer(text):
            if match.start() > 2 and text[match.start() - 2] not in '.!?"\n':
                counts[match[1]] = counts.get(match[1], 0) + 1
        names = [name for name, count in counts.items() if count >= 2 and name not in _MONTHS]
        if not names or len(text) < 100:
            continue
        old = rng.choice(names)
        new = rng.choice([name for name in _NEW_NAMES if name not in text])
        changed = re.sub(rf"\b{old}\b", new, text)
        yield Exchange(f"Write this again, but change {old} to {new}:\n{text}", changed)
