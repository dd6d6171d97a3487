"""Writes MODEL_CARD.md and curves.svg from what the recipe measured, so that the card cannot disagree with it.

python -m recipes.box.card --work DIR --box archerfish/box
"""

import argparse
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from archerfish.arch.cost import kv_bytes_per_token, num_parameters, weight_bytes
from archerfish.models.families import Fields, find_family
from recipes.box.curves import DOMAINS, MissingMeasurement, Run, draw_curves, read_run, require
from recipes.box.evaluate import STRIDE
from recipes.box.heads import Head, read_heads
from recipes.box.samples import MOST_TOKENS, SEED, Sample, show_samples
from recipes.box.shapes import CONTEXT, SHAPES, VOCAB_SIZE
from recipes.box.skills import ANSWER_TOKENS, CALL_TOKENS

MODELS = {"perch": "perch", "minnow-plain": "minnow, by itself", "minnow": "minnow, distilled"}
"""Measured models: the name of their results, and the name on the card."""

_HEADS = {"eagle": "EAGLE-3", "medusa": "Medusa"}
"""Names of heads on the card, by method."""

PHASES = {
    "perch-main": "perch, main phase",
    "perch": "perch, last phase",
    "minnow-main": "minnow, main phase",
    "minnow-plain": "minnow, last phase by itself",
    "minnow": "minnow, last phase distilled",
}
"""Every training by the name of its log. Each last phase continues the main phase of the same model."""

_MADE_BY = {
    "results.json": "python -m recipes.box evaluate",
    "samples.json": "python -m recipes.box.samples",
    "skills.json": "python -m recipes.box.skills",
    **{f"{name}.log.jsonl": f"python -m recipes.box {name}" for name in PHASES},
}
_COLUMNS = 120


# -- what was measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Everything that the card shows."""

    results: Mapping[str, Mapping[str, float]]
    skills: Mapping[str, Mapping[str, Any]]
    samples: Sequence[Sample]
    runs: Mapping[str, Run]
    heads: Mapping[str, Head]


def read_measured(work: Path, box: Path) -> Measured:
    """Read the measurements from the recipe's working directory and the heads in the box, and check that none is
    missing.
    """
    missing = [f"{name} (made by {step})" for name, step in _MADE_BY.items() if not (work / name).exists()]
    if missing:
        raise MissingMeasurement(f"{work} has no {', no '.join(missing)}")
    results, skills, samples = (
        json.loads((work / f"{name}.json").read_text(encoding="utf-8")) for name in ("results", "skills", "samples")
    )
    for name in MODELS:
        wanted = [*DOMAINS, *(["agreement"] if name != "perch" else [])]
        require(wanted, results.get(name, {}), f"{name} in results.json", _MADE_BY["results.json"])
    for model in SHAPES:
        require(["quoting", "tools"], skills.get(model, {}), f"{model} in skills.json", _MADE_BY["skills.json"])
    require(SHAPES, {sample["model"]: sample for sample in samples}, "samples.json", _MADE_BY["samples.json"])
    logs = {name: f"{name}.log.jsonl" for name in PHASES}
    runs = {name: read_run(work / log, _MADE_BY[log]) for name, log in logs.items()}
    return Measured(results, skills, samples, runs, read_heads(box))


# -- the card ---------------------------------------------------------------------------------------------------------

_HEAD = """\
---
license: cc-by-sa-4.0
language:
- en
pipeline_tag: text-generation
tags:
- llama
- archerfish
---

# Perch and minnow, the models in the box"""

_WHAT_FOR = """
Archerfish comes with two small language models, so that everything in it can be tried, tested and measured without a
download: perch, which writes, and minnow, which is small enough to draft perch's next tokens and so to speed it
up. Both have the shape of a Llama, share one tokenizer, and were trained from nothing by the recipe in `recipes/box`.
They are there to exercise the engine. They are not meant to be used as assistants."""

_USE = """\
```python
from archerfish import LLM, SamplingParams

llm = LLM()  # perch; the other is LLM("minnow")
[output] = llm.chat([{"role": "user", "content": "What is a volcano?"}], SamplingParams(temperature=0, max_tokens=64))
print(output.outputs[0].text)
```"""

_FORMAT = """\
This is how a conversation is written; the chat template in `tokenizer_config.json` does it. The line of tools is there
if any are offered, and `<|endoftext|>` stands between documents.

```text
<|system|>Tools: name(argument, argument), name(argument)<|end|>
<|user|>question<|end|><|assistant|>answer<|end|>
<|user|>request<|end|><|assistant|><|tool_call|>{"name": "name", "arguments": {"argument": "value"}}<|end|>
<|tool_result|>what the tool returned<|end|><|assistant|>answer<|end|>
```

There are no line breaks between the turns: they are only shown here."""

_CAN = """\
- Short stories and plain English prose that hold together for a few sentences.
- Greetings, and one-sentence answers to what a well-known thing is. The sentence is fluent; the fact may be wrong.
- Answers quoted from a passage in the prompt; how often the right words, the figures above say.
- Calls of functions that the prompt lists, in the format above."""

_CANNOT = """\
- They know very little, and say wrong things as fluently as right ones. Nothing they state should be relied on.
- English only.
- The context is {context} tokens, prompt and answer together.
- Arithmetic and reasoning in steps are poor, although word problems were among the texts.
- Instructions in general are not followed: only the few kinds of task listed here were taught.
- Nothing was done to make them safe. Old books and an encyclopedia hold old and ugly views, and these models repeat
  what they read.
- They should not answer people, decide anything, or stand in for a larger model in a comparison of quality. For
  trying, testing and benchmarking an engine they are real models with real text: caches are hit, drafts are accepted,
  and answers end, as they do with larger ones."""

# A row ends at a line that ends with its bar.
_TEXTS = """\
| text | authors | licence | used for |
|---|---|---|---|
| [Simple English Wikipedia, 2021](https://simple.wikipedia.org)
| Wikipedia contributors | [CC BY-SA 3.0] | plain text; questions made of its first sentences and passages |
| [Project Gutenberg, children's books](https://www.gutenberg.org)
| their authors, and the volunteers of Project Gutenberg | [public domain in the USA] | plain text |
| [TinyStories, two samples](https://huggingface.co/datasets/roneneldan/TinyStories)
| Ronen Eldan, Yuanzhi Li | [CDLA-Sharing-1.0] | plain text; retelling with another name |
| [African Storybook, English books](https://www.africanstorybook.org)
| African Storybook Initiative and the authors of its books | [CC BY] | plain text |
| [FairytaleQA](https://github.com/uci-soe/FairytaleQAData) | Ying Xu, Dakuo Wang, Mo Yu and others
| [Apache-2.0] | plain text; questions answered in words of a passage; measuring |
| [Schema-Guided Dialogue](https://github.com/google-research-datasets/dstc8-schema-guided-dialogue)
| Abhinav Rastogi, Xiaoxue Zang, Srinivas Sunkara, Raghav Gupta, Pranav Khaitan
| [CC BY-SA 4.0] | conversations with tool calls; measuring |
| [Taskmaster-4](https://github.com/google-research-datasets/Taskmaster)
| Bill Byrne, Saravanan Ganesh (Google LLC) | [CC BY 4.0] | conversations with tool calls |
| [Self-dialogue Corpus](https://github.com/jfainberg/self_dialogue_corpus)
| Joachim Fainberg, Ben Krause, Mihai Dobre and others | [BSD-3-Clause] | small talk |
| [GSM8K](https://github.com/openai/grade-school-math)
| Karl Cobbe, Vineet Kosaraju, Mohammad Bavarian and others | [MIT] | word problems |
| [WikiText-2](https://arxiv.org/abs/1609.07843)
| Stephen Merity, Caiming Xiong, James Bradbury, Richard Socher; Wikipedia contributors
| [CC BY-SA 3.0] | measuring only |"""

_LINKS = """\
[CC BY-SA 3.0]: https://creativecommons.org/licenses/by-sa/3.0/
[CC BY-SA 4.0]: https://creativecommons.org/licenses/by-sa/4.0/
[CC BY 4.0]: https://creativecommons.org/licenses/by/4.0/
[CC BY]: https://creativecommons.org/licenses/by/4.0/
[BSD-3-Clause]: https://opensource.org/license/bsd-3-clause
[Apache-2.0]: https://www.apache.org/licenses/LICENSE-2.0
[MIT]: https://opensource.org/license/mit
[CDLA-Sharing-1.0]: https://cdla.dev/sharing-1-0/
[public domain in the USA]: https://www.gutenberg.org/policy/license.html"""

_LICENCE = """
The weights, the tokenizer and this card are offered under CC BY-SA 4.0
(https://creativecommons.org/licenses/by-sa/4.0/), unlike the code of Archerfish, which is under Apache-2.0. The reason
is the text: a good part of it is under CC BY-SA 3.0 or 4.0, which asks that what is adapted from it be shared alike,
and 3.0 allows a later version for that. Whether weights are an adaptation of the text they were trained on is not
settled; this takes the careful side. None of the texts themselves is part of the package. They were changed for
training: cut into documents, written as conversations in the format above, turned into questions with answers, and
told again with other names."""

_OVERLAP = """
Held-out files were kept out of training. One overlap is known: of the 23 stories in FairytaleQA's validation part, two
(46 of its 1,025 questions) also stand in the children's books, as plain text without the questions."""

_REPRODUCE = """\
```
python -m recipes.box STEP ... --data DATA --work WORK
for model in perch minnow; do
    python -m recipes.box.skills --model WORK/exported/$model --data DATA/eval --out WORK/skills.json
    python -m recipes.box.samples --model WORK/exported/$model --out WORK/samples.json
done
python -m recipes.box.card --work WORK --box archerfish/box
```

`recipes/box/README.md` lists the steps and what they need. This card is written by the last of these commands from
what the others measured; please change `recipes/box/card.py` rather than this file."""


def card(measured: Measured) -> str:
    """Return the whole card as Markdown."""
    sections = {
        "": [_prose(_WHAT_FOR), _shapes(), _USE, _FORMAT],
        "Training": _training(measured.runs),
        "How good they are": _quality(measured),
        "Draft heads for perch": _heads(measured.heads, measured.results["minnow"]["agreement"]),
        "What they write": _samples(measured.samples),
        "What they can do": [_CAN],
        "What they cannot do": [_CANNOT.format(context=_count(CONTEXT))],
        "Texts, authors and licences": [re.sub(r"(?<!\|)\n", " ", _TEXTS), _LINKS, _prose(_LICENCE), _prose(_OVERLAP)],
        "Making them again": [_REPRODUCE],
    }
    parts = [_HEAD]
    for title, paragraphs in sections.items():
        parts += [f"## {title}"] if title else []
        parts += paragraphs
    return "\n\n".join(parts) + "\n"


def _shapes() -> str:
    archs = [find_family(shape).read(Fields(shape)) for shape in SHAPES.values()]

    def row(title: str, key: str) -> list[str]:
        return [title, *(_count(shape[key]) for shape in SHAPES.values())]

    rows = [
        ["parameters", *(f"{num_parameters(arch) / 1e6:.2f} million" for arch in archs)],
        ["weights on disk, bfloat16", *(f"{weight_bytes(arch, 2) / 1e6:.1f} MB" for arch in archs)],
        row("layers", "num_hidden_layers"),
        row("width", "hidden_size"),
        row("width of the feed-forward part", "intermediate_size"),
        row("heads", "num_attention_heads"),
        row("heads of keys and values", "num_key_value_heads"),
        row("width of a head", "head_dim"),
        row("tokens in the vocabulary", "vocab_size"),
        row("context, in tokens", "max_position_embeddings"),
        ["KV cache for one token, bfloat16", *(f"{_count(kv_bytes_per_token(arch, 2))} bytes" for arch in archs)],
    ]
    return _table(["", *SHAPES], rows)


def _training(runs: Mapping[str, Run]) -> list[str]:
    rows = []
    for name, title in PHASES.items():
        plan, num_tokens, seconds = runs[name].plan, runs[name].num_tokens, runs[name].seconds
        steps = [plan["device"], _count(plan["num_steps"]), _count(plan["tokens_a_step"])]
        rate = f"{_large(num_tokens / seconds)} tokens/s"
        rows.append([title, *steps, _large(num_tokens), f"{seconds / 60:.1f} minutes", rate])
    table = _table(["", "device", "steps", "tokens a step", "tokens seen", "time", "rate"], rows)
    perch, minnow = (_large(runs[f"{name}-main"].num_tokens + runs[name].num_tokens) for name in ("perch", "minnow"))
    phases = f"""
        The tokenizer is a byte-level BPE with {_count(VOCAB_SIZE)} tokens, learned from the same texts. Matrices of the
        layers were trained with Muon, embeddings and norms with AdamW, in two phases. In the main phase the models
        learned to predict the next token of everything there is; in the last one, at the end of which the learning
        rate falls, of a mixture with more stories, questions and answers, and fewer books. Minnow had its last phase
        twice, from the same beginning: by itself, for comparison, and distilled, which is the one in the box. There it
        learned to predict perch, by the Kullback-Leibler divergence of its whole distribution from perch's, half on
        the texts and half on what perch itself had written after beginnings of them. Altogether perch saw {perch}
        tokens, and minnow {minnow}."""
    picture = """
        In the upper row the training loss, and for minnow's distillation the divergence from perch in its place. In the
        lower row bits per byte of held-out text on the way; only a part of it may have been read for this, so that the
        curves need not end at exactly the figures below."""
    alt = "Training loss and held-out bits per byte against tokens seen, for perch and for minnow"
    return [_prose(phases), table, f"![{alt}](curves.svg)", _prose(picture)]


def _quality(measured: Measured) -> list[str]:
    results = measured.results
    bits = [[title, *(f"{results[name][domain]:.3f}" for name in MODELS)] for domain, title in DOMAINS.items()]
    minnows = [name for name in MODELS if name != "perch"]
    agreement = ["agreement", *(_percent(results[name]["agreement"]) for name in minnows)]
    return [
        "### Bits per byte of held-out text",
        _table(["", *MODELS.values()], bits),
        _prose(f"""
            Lower is better. Measured with the weights as they ship. Every document is read whole: the model's surprise
            at each of its tokens, in bits, is added up over all documents and divided by their length in bytes of
            UTF-8. The context is {_count(CONTEXT)} tokens; a longer document is read in windows that overlap by
            {CONTEXT - STRIDE}, in which each token is judged once, past the first window with at least
            {CONTEXT - STRIDE} tokens before it. The short stories and WikiText-2 are one long document each. Bits per
            byte can be compared between models with different tokenizers."""),
        "### How often minnow drafts perch's token",
        _table(["", *(MODELS[name] for name in minnows)], [agreement]),
        _prose("""
            Perch goes on, greedily, from beginnings of held-out encyclopedia, children's books and stories; this is the
            share of the tokens it writes that minnow, given everything before, holds for the likeliest. With minnow as
            the draft model at temperature 0 it is the chance that the next draft token is accepted."""),
        "### Quoting from a passage: FairytaleQA, validation",
        _quoting_table(measured.skills),
        _prose(f"""
            A passage and a question, as the user's only message; the answer is greedy, of at most {ANSWER_TOKENS}
            tokens. Exact match and F1 (overlap of words) after SQuAD's normalization, which ignores capitals,
            punctuation and articles; the best over a question's reference answers. Literal questions are those with a
            reference that stands in the passage word for word, the only kind of answer the models were taught. Quoted
            is the share of the model's answers that stand in the passage word for word, right or wrong. Prompts that
            do not fit in the context score 0."""),
        "### Calling tools: Schema-Guided Dialogue, test",
        _tools_table(measured.skills),
        _prose(f"""
            Conversations of the test part, up to each place where the reference calls a function; the model goes on,
            greedily, for at most {CALL_TOKENS} tokens. Well-formed: it begins with the token of a call, and the rest is
            JSON with a name and arguments. The next rows ask in addition for the reference's function, and for exactly
            its arguments. The services are none of those in the training part, though similar ones are. Calls made
            where none is due are not counted. Where a conversation is too long, its oldest turns are left out, but not
            the list of tools."""),
    ]


def _quoting_table(skills: Mapping[str, Mapping[str, Any]]) -> str:
    scores = [skills[model]["quoting"] for model in SHAPES]
    rows = []
    for part, title in (("all", "all {} questions"), ("literal", "{} literal questions")):
        counted = title.format(_count(_same(score[part]["questions"] for score in scores)))
        for measure, name in (("exact_match", "exact match"), ("f1", "F1")):
            rows.append([f"{counted}, {name}", *(_percent(score[part][measure]) for score in scores)])
    rows.append(["quoted", *(_percent(score["quoted"]) for score in scores)])
    rows.append(["prompts that did not fit", *(_count(score["did_not_fit"]) for score in scores)])
    return _table(["", *SHAPES], rows)


def _tools_table(skills: Mapping[str, Mapping[str, Any]]) -> str:
    scores = [skills[model]["tools"] for model in SHAPES]
    counted = _count(_same(score["calls"] for score in scores))
    titles = {
        "well_formed": f"well-formed, of {counted} calls",
        "right_function": "and the right function",
        "right_arguments": "and exactly the right arguments",
    }
    rows = [[title, *(_percent(score[key]) for score in scores)] for key, title in titles.items()]
    rows.append(["conversations that were shortened", *(_count(score["shortened"]) for score in scores)])
    rows.append(["prompts that did not fit", *(_count(score["did_not_fit"]) for score in scores)])
    return _table(["", *SHAPES], rows)


def _heads(heads: Mapping[str, Head], minnow_agreement: float) -> list[str]:
    rows = [
        ["parameters", *(f"{head.num_parameters / 1e6:.2f} million" for head in heads.values())],
        ["weights on disk, bfloat16", *(f"{head.num_bytes / 1e6:.1f} MB" for head in heads.values())],
        ["draft vocabulary, the most frequent tokens", *(_count(head.num_draftable) for head in heads.values())],
        ["texts it was trained on", *(_count(head.num_texts) for head in heads.values())],
    ]
    for number, scores in enumerate(zip_longest(*(head.depths for head in heads.values()), fillvalue=None), 1):
        for measure in ("agreement", "acceptance"):
            shares = ["" if score is None else _percent(score[measure]) for score in scores]
            rows.append([f"{measure}, draft token {number}", *shares])
    what = """
        In perch's directory lie an EAGLE-3 head and Medusa heads, which propose perch's next tokens from states of
        its layers: `LLM(speculative_config={"method": "eagle"})`, or `medusa`. They were trained with `archerfish
        train-draft` on texts that perch wrote after beginnings of the texts below. Each has a card of its own next
        to it, and `recipes/box/README.md` has the commands."""
    measures = f"""
        Measured on texts of the same kind that were held out, for draft tokens after accepted ones. Agreement is how
        often the likeliest draft token is perch's likeliest token; acceptance is, at temperature 1, the share of draft
        tokens that rejection sampling accepts. Minnow drafts better than both: its agreement, measured on other texts
        (above), is {_percent(minnow_agreement)}, which is why `auto` takes minnow."""
    return [_prose(what), _table(["", *(_HEADS[method] for method in heads)], rows), _prose(measures)]


def _samples(samples: Sequence[Sample]) -> list[str]:
    how = f"""
        Each prompt twice: greedy, and at a temperature T with the seed {SEED}. What had not ended after {MOST_TOKENS}
        tokens was cut."""
    parts = [_prose(how)]
    for model in SHAPES:
        parts += [f"### {model}", *show_samples([sample for sample in samples if sample["model"] == model])]
    return parts


# -- how it is written ------------------------------------------------------------------------------------------------


def _prose(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _COLUMNS, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with the first column left-aligned and numbers right-aligned."""
    is_text = [any(cell[:1].isalpha() or cell[:1] == "[" for cell in column) for column in zip(*rows, strict=True)]
    lines = [head, ["---" if text else "---:" for text in is_text], *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in lines)


def _count(number: float) -> str:
    return f"{round(number):,}"


def _large(number: float) -> str:
    return f"{number / 1e9:.3g} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _same(numbers: Iterable[int]) -> int:
    """Return the number that all models share: figures over different numbers of questions are not comparable."""
    found = set(numbers)
    if len(found) != 1:
        asked = " and ".join(map(str, sorted(found)))
        raise MissingMeasurement(f"the models were asked different numbers of things, {asked}; ask both all")
    return found.pop()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="recipes.box.card", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="where the recipe has left its measurements")
    parser.add_argument("--box", type=Path, required=True, help="where the heads are, and the card and the picture go")
    options = parser.parse_args()
    try:
        measured = read_measured(options.work, options.box)
        text = card(measured)
    except MissingMeasurement as error:
        raise SystemExit(str(error)) from error
    options.box.mkdir(parents=True, exist_ok=True)
    (options.box / "MODEL_CARD.md").write_text(text, encoding="utf-8")
    draw_curves(measured.runs, options.box / "curves.svg")


if __name__ == "__main__":
    main()
