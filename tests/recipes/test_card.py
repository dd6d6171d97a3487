"""The card of the models in the box: it says what was measured, names every source, and never has a gap."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from archerfish.arch.cost import num_parameters
from archerfish.box import models_in_box
from archerfish.models.families import Fields, find_family
from recipes.box import card, curves
from recipes.box.chat import ASSISTANT, END, USER
from recipes.box.shapes import SHAPES

RESULTS = {
    "perch": {"simplewiki_val": 1.0511, "gutenberg_children_val": 1.1622, "tinystories_val": 0.7733},
    "minnow-plain": {"simplewiki_val": 1.4544, "gutenberg_children_val": 1.5655, "tinystories_val": 0.9766},
    "minnow": {"simplewiki_val": 1.4877, "gutenberg_children_val": 1.5988, "tinystories_val": 0.9899},
}
SAMPLES = [
    ("perch", "Once upon a time", 0, 0, ", there was a fish.\n\nIt swam."),
    ("perch", "Once upon a time", 0.8, 0, " a king had ```three``` sons."),
    ("perch", f"{USER}What is April?\nSay it.{END}{ASSISTANT}", 0, 0, "April is a month."),
    ("perch", f"{USER}What is April?\nSay it.{END}{ASSISTANT}", 0.8, 0, "April is a king."),
    ("minnow", "Once upon a time", 0, 0, ", there was a little girl. " + "She was happy. " * 20),
]


def invent(work: Path) -> Path:
    """A working directory as the recipe leaves it, with made-up numbers."""
    results: dict[str, dict[str, float]] = {
        name: {**scores, "wikitext2_test": 1.31} for name, scores in RESULTS.items()
    }
    results["minnow-plain"]["agreement"], results["minnow"]["agreement"] = 0.5123, 0.6234
    (work / "results.json").write_text(json.dumps(results))
    (work / "skills.json").write_text(json.dumps({"perch": skills(0.2), "minnow": skills(0.1)}))
    keys = ("model", "prompt", "temperature", "seed", "text")
    (work / "samples.json").write_text(json.dumps([dict(zip(keys, one, strict=True)) for one in SAMPLES]))
    write_log(work / "perch-main.log.jsonl", 20_000, 2.8)
    write_log(work / "perch.log.jsonl", 8_000, 2.6, start=0.3)
    write_log(work / "minnow-main.log.jsonl", 12_000, 3.4)
    write_log(work / "minnow-plain.log.jsonl", 8_000, 3.2, start=0.3)
    write_log(work / "minnow.log.jsonl", 8_000, 0.4, start=0.3, bits=1.32)
    write_head(work / "box" / "perch" / "eagle", "draft_vocab_size", 1_234_567, [(0.7123, 0.6234), (0.5, 0.4)])
    write_head(work / "box" / "perch" / "medusa", "truncated_vocab_size", 345_678, [(0.3456, 0.3)])
    return work


def skills(level: float) -> dict[str, Any]:
    return {
        "quoting": {
            "all": {"questions": 1025, "exact_match": level / 4, "f1": level},
            "literal": {"questions": 504, "exact_match": level + 0.0312, "f1": level + 0.1},
            "quoted": 0.8772,
            "did_not_fit": 3,
        },
        "tools": {
            "calls": 445,
            "well_formed": 0.9012,
            "right_function": 0.8,
            "right_arguments": level + 0.0456,
            "shortened": 17,
            "did_not_fit": 0,
        },
    }


def write_log(path: Path, num_steps: int, final_loss: float, start: float = 6.0, bits: float | None = None) -> None:
    plan = {"num_steps": num_steps, "tokens_a_step": 65_536, "tokens_per_second": 2_900_000, "device": "NVIDIA H200"}
    lines: list[dict[str, Any]] = [{"plan": plan}]
    for step in range(100, num_steps + 1, 100):
        above = start * math.exp(-step / 400)
        loss = final_loss + above + 0.05 * math.sin(step)
        line: dict[str, Any] = {"step": step, "tokens": step * 65_536, "seconds": step * 0.0225, "loss": loss}
        if step % (num_steps // 10) == 0:
            base = bits or 0.4 * final_loss
            line["held_out"] = {name: base + 0.1 * place + above / 3 for place, name in enumerate(curves.DOMAINS)}
        lines.append(line)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def write_head(directory: Path, guessable: str, num_parameters: int, shares: list[tuple[float, float]]) -> None:
    directory.mkdir(parents=True)
    depths = [{"agreement": agreement, "acceptance": acceptance} for agreement, acceptance in shares]
    about = {"num_parameters": num_parameters, "num_training": 9_000, "score": {"depths": depths}}
    (directory / "config.json").write_text(json.dumps({guessable: 1_500, "about": about}))
    (directory / "some.safetensors").write_bytes(bytes(2 * num_parameters))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return invent(tmp_path)


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_the_card_shows_what_was_measured(work: Path) -> None:
    text = card.card(card.read_measured(work, work / "box"))
    table = rows(text)
    minnow = find_family(SHAPES["minnow"]).read(Fields(SHAPES["minnow"]))
    assert ["Simple English Wikipedia", "1.051", "1.454", "1.488"] in table
    assert ["Short stories", "0.773", "0.977", "0.990"] in table
    assert ["agreement", "51.2 %", "62.3 %"] in table
    assert ["all 1,025 questions, F1", "20.0 %", "10.0 %"] in table
    assert ["504 literal questions, exact match", "23.1 %", "13.1 %"] in table
    assert ["quoted", "87.7 %", "87.7 %"] in table
    assert ["well-formed, of 445 calls", "90.1 %", "90.1 %"] in table
    assert ["and exactly the right arguments", "24.6 %", "14.6 %"] in table
    assert ["conversations that were shortened", "17", "17"] in table
    trained = [
        "perch, main phase",
        "NVIDIA H200",
        "20,000",
        "65,536",
        "1.31 billion",
        "7.5 minutes",
        "2.91 million tokens/s",
    ]
    assert trained in table
    assert "perch saw 1.84 billion tokens, and minnow 1.31 billion." in " ".join(text.split())
    assert ["parameters", "12.15 million", f"{num_parameters(minnow) / 1e6:.2f} million"] in table
    assert text.startswith("---\nlicense: cc-by-sa-4.0\n")


def test_the_card_describes_the_heads(work: Path) -> None:
    text = card.card(card.read_measured(work, work / "box"))
    table = rows(text)
    assert ["", "EAGLE-3", "Medusa"] in table
    assert ["parameters", "1.23 million", "0.35 million"] in table
    assert ["weights on disk, bfloat16", "2.5 MB", "0.7 MB"] in table
    assert ["draft vocabulary, the most frequent tokens", "1,500", "1,500"] in table
    assert ["agreement, draft token 1", "71.2 %", "34.6 %"] in table
    assert ["acceptance, draft token 1", "62.3 %", "30.0 %"] in table
    # One drafts further ahead than the other.
    assert ["agreement, draft token 2", "50.0 %", ""] in table
    assert "its agreement, measured on other texts (above), is 62.3 %," in " ".join(text.split())


def test_the_card_in_the_box_describes_the_heads_in_the_box(work: Path) -> None:
    box = models_in_box()["perch"].parent
    section = card.card(card.read_measured(work, box)).split("## Draft heads for perch\n")[1].split("\n## ")[0]
    in_box = rows((box / "MODEL_CARD.md").read_text(encoding="utf-8"))
    assert len(rows(section)) == 14
    for row in rows(section):
        assert row in in_box


def test_the_card_shows_what_they_write(work: Path) -> None:
    text = card.card(card.read_measured(work, work / "box"))
    # The text has a fence of its own.
    assert (
        """
````text
text     Once upon a time

greedy   , there was a fish.

         It swam.

T = 0.8  a king had ```three``` sons.
````

```text
user     What is April?
         Say it.

greedy   April is a month.

T = 0.8  April is a king.
```

### minnow
"""
        in text
    )
    [long] = [line for line in text.splitlines() if line.startswith("greedy   , there was a little girl.")]
    assert 100 < len(long) <= 120


def test_every_source_is_named_with_its_licence(work: Path) -> None:
    text = card.card(card.read_measured(work, work / "box"))
    table = {row[0].split("]")[0].strip("["): row for row in rows(text)}
    expected = {
        "Simple English Wikipedia, 2021": "CC BY-SA 3.0",
        "Project Gutenberg, children's books": "public domain in the USA",
        "TinyStories, two samples": "CDLA-Sharing-1.0",
        "African Storybook, English books": "CC BY",
        "FairytaleQA": "Apache-2.0",
        "Schema-Guided Dialogue": "CC BY-SA 4.0",
        "Taskmaster-4": "CC BY 4.0",
        "Self-dialogue Corpus": "BSD-3-Clause",
        "GSM8K": "MIT",
        "WikiText-2": "CC BY-SA 3.0",
    }
    for name, licence in expected.items():
        assert table[name][2] == f"[{licence}]" and len(table[name]) == 4
        assert f"\n[{licence}]: https://" in text


@pytest.mark.parametrize("name", ["results.json", "skills.json", "samples.json", "minnow-plain.log.jsonl"])
def test_a_missing_file_is_named_with_the_step_that_makes_it(work: Path, name: str) -> None:
    (work / name).unlink()
    with pytest.raises(curves.MissingMeasurement, match=rf"has no {name} \(made by python -m recipes\.box"):
        card.read_measured(work, work / "box")


def test_a_missing_figure_is_named(work: Path) -> None:
    path = work / "results.json"
    results = json.loads(path.read_text())
    del results["minnow"]["agreement"]
    path.write_text(json.dumps(results))
    with pytest.raises(curves.MissingMeasurement, match=r"minnow in results\.json has no agreement; run"):
        card.read_measured(work, work / "box")


@pytest.mark.parametrize("method", ["eagle", "medusa"])
def test_what_a_head_lacks_is_named_with_what_trains_it(work: Path, method: str) -> None:
    path = work / "box" / "perch" / method / "config.json"
    trained = f"archerfish train-draft --method {method} --model perch"
    path.write_text("{}")
    with pytest.raises(curves.MissingMeasurement, match=rf"has no \w+_vocab_size, no about; run {trained}"):
        card.read_measured(work, work / "box")
    path.unlink()
    with pytest.raises(curves.MissingMeasurement, match=rf"has no config\.json \(made by {trained}\)"):
        card.read_measured(work, work / "box")


PLAN = '{"plan": {"num_steps": 200, "tokens_a_step": 8, "device": "CPU"}}\n'


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ('{"step": 200, "tokens": 8, "seconds": 1.0, "loss": 9.0}\n', "has no num_steps, no tokens_a_step, no device"),
        (PLAN, "ends at step 0 of 200"),
        (PLAN + '{"step": 100, "tokens": 800, "seconds": 1.0, "loss": 9.0}\n', "ends at step 100 of 200"),
        (PLAN + '{"step": 200, "tokens": 1600, "loss": 9.0}\n', "has no seconds"),
    ],
)
def test_a_log_that_lacks_something_is_named(work: Path, lines: str, complaint: str) -> None:
    (work / "minnow.log.jsonl").write_text(lines)
    with pytest.raises(curves.MissingMeasurement, match=rf"minnow\.log\.jsonl {complaint}; run python -m recipes\.box"):
        card.read_measured(work, work / "box")


def test_models_with_different_questions_are_not_compared(work: Path) -> None:
    path = work / "skills.json"
    scores = json.loads(path.read_text())
    scores["minnow"]["tools"]["calls"] = 20
    path.write_text(json.dumps(scores))
    with pytest.raises(curves.MissingMeasurement, match="20 and 445"):
        card.card(card.read_measured(work, work / "box"))


def test_what_a_resumed_training_did_twice_counts_once(work: Path) -> None:
    point = '{{"step": {0}, "tokens": {0}, "seconds": {1}, "loss": 2.5}}\n'
    lines = [point.format(*one) for one in ((50, 1.0), (100, 2.0), (150, 3.0), (100, 2.1), (150, 3.1), (200, 4.1))]
    (work / "perch.log.jsonl").write_text(PLAN + point.format(200, 9.0) + PLAN + "".join(lines))
    run = card.read_measured(work, work / "box").runs["perch"]
    assert [(one["step"], one["seconds"]) for one in run.points] == [(50, 1.0), (100, 2.1), (150, 3.1), (200, 4.1)]
    assert run.num_tokens == 200 and run.seconds == 4.1


def test_curves_are_thinned_to_means() -> None:
    points = [(float(place), float(place % 2)) for place in range(1000)]
    few = curves.thinned(points, most=100)
    assert len(few) == 100 and few[0] == (4.5, 0.5)
    assert curves.thinned(points[:7], most=100) == points[:7]


def test_the_picture_is_small_and_the_same_twice(work: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    runs = card.read_measured(work, work / "box").runs
    for name in ("one.svg", "two.svg"):
        curves.draw_curves(runs, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes()
    assert len(drawn) < 60_000
    for label in ("WikiText-2", "divergence from perch", "tokens seen, billions"):
        assert label in drawn.decode()
