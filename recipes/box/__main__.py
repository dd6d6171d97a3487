"""One step of the recipe, or all of them: python -m recipes.box STEP --data DIR --work DIR.

tokenizer   train it on the mixed pack (once; it is small enough to keep)
encode      unpack and encode whichever packs lie in --data; packs may be brought over one at a time
perch       train the larger model for --minutes
minnow      train the smaller one, by itself
distill     teach it to guess perch
evaluate    bits per byte of what has been trained so far, and how well minnow guesses
samples     what they write
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from archerfish.models.decoder import Decoder
from recipes.box import corpus, mixture
from recipes.box.chat import ASSISTANT, END, END_OF_TEXT, USER
from recipes.box.distill import OwnRows, agreement, imitation_loss
from recipes.box.evaluate import evaluate, held_out_prompts
from recipes.box.model import load_parameters, new_model, sample
from recipes.box.pack import Packed, pack
from recipes.box.shapes import CONTEXT
from recipes.box.tokenizer import save_tokenizer, train_tokenizer
from recipes.box.train import DataRows, TrainingPlan, compiled, next_token_loss, train

_TOKENIZER_BYTES = 40_000_000
_SHOWN = (
    "Once upon a time",
    "April is",
    "The sun",
    f"{USER}Hello!{END}{ASSISTANT}",
    f"{USER}What is April?{END}{ASSISTANT}",
    f"{USER}What is a volcano?{END}{ASSISTANT}",
    f"{USER}Tom gave his red ball to Anna. Anna was very happy.\n\nQuestion: Who got the ball?{END}{ASSISTANT}",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="recipes.box", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("steps", nargs="+", choices=list(_STEPS))
    parser.add_argument("--data", type=Path, required=True, help="where the packs are, and eval/")
    parser.add_argument("--work", type=Path, required=True, help="where everything that is made goes")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--rows", type=int, default=64, help="of the context's length, in one step")
    parser.add_argument("--own-batches", type=int, default=24, help="batches that perch writes for the distillation")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for step in options.steps:
        print(f"== {step}", flush=True)
        _STEPS[step](options)


def _tokenizer(options: argparse.Namespace) -> None:
    raw = options.work / "raw"
    corpus.unpack(options.data, raw)
    sources = [
        *mixture.mixed_sources(raw),
        *(mixture.book_sources(raw) if (raw / "gutenberg_children.txt").exists() else []),
    ]
    rng = random.Random(0)
    texts: list[str] = []
    total = sum(sum(map(len, source.documents)) * source.weight for source in sources)
    for source in sources:
        wanted = _TOKENIZER_BYTES * sum(map(len, source.documents)) * source.weight / total
        documents = list(source.documents)
        rng.shuffle(documents)
        for document in documents:
            if wanted <= 0:
                break
            texts.append(document[:20_000])
            wanted -= len(texts[-1])
    save_tokenizer(train_tokenizer(texts), options.work / "tokenizer")


def _load_tokenizer(options: argparse.Namespace) -> Tokenizer:
    return Tokenizer.from_file(str(options.work / "tokenizer" / "tokenizer.json"))


def _encode(options: argparse.Namespace) -> None:
    raw, tokenizer = options.work / "raw", _load_tokenizer(options)
    corpus.unpack(options.data, raw)
    sources = mixture.mixed_sources(raw) if (options.data / corpus.MIXED_PACK).exists() else []
    sources += mixture.book_sources(raw) if (options.data / corpus.BOOKS_PACK).exists() else []
    for source in sources:
        pack(source, tokenizer, options.work / "packed")


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _model(options: argparse.Namespace, name: str, saved_as: str | None = None) -> Decoder:
    """Fresh, or as it was saved."""
    model = new_model(name, _device())
    if saved_as is not None:
        load_parameters(model, options.work / f"{saved_as}.safetensors")
    return model


def _data(options: argparse.Namespace) -> DataRows:
    return DataRows(Packed(options.work / "packed"), options.rows, _device())


def _perch(options: argparse.Namespace) -> None:
    plan = TrainingPlan("perch", options.work, options.minutes * 60)
    train(plan, _model(options, "perch"), _data(options), compiled(next_token_loss, _device()))


def _minnow(options: argparse.Namespace) -> None:
    plan = TrainingPlan("minnow-plain", options.work, options.minutes * 60)
    train(plan, _model(options, "minnow"), _data(options), compiled(next_token_loss, _device()))


def _distill(options: argparse.Namespace) -> None:
    teacher = _model(options, "perch", "perch").requires_grad_(False)
    student = _model(options, "minnow", "minnow-plain")
    started = time.monotonic()
    rows = OwnRows(teacher, _data(options), options.own_batches, _device())
    print(f"perch wrote {options.own_batches} batches in {time.monotonic() - started:.0f} s", flush=True)
    seconds = options.minutes * 60 - (time.monotonic() - started)
    plan = TrainingPlan("minnow", options.work, seconds, matrix_lr=0.01, other_lr=0.0015)
    train(plan, student, rows, compiled(imitation_loss(teacher), _device()))


def _evaluate(options: argparse.Namespace) -> None:
    tokenizer, results = _load_tokenizer(options), {}
    for saved_as, name in (("perch", "perch"), ("minnow-plain", "minnow"), ("minnow", "minnow")):
        if (options.work / f"{saved_as}.safetensors").exists():
            model = _model(options, name, saved_as)
            results[saved_as] = evaluate(model, tokenizer, options.data / "eval", _device())
            if name == "minnow":
                prompts = held_out_prompts(tokenizer, options.data / "eval").to(_device())
                share = agreement(_model(options, "perch", "perch"), model, prompts, 256, _device())
                results[saved_as]["agreement"] = round(share, 4)
            print(saved_as, json.dumps(results[saved_as]), flush=True)
    (options.work / "results.json").write_text(json.dumps(results, indent=2))


def _samples(options: argparse.Namespace) -> None:
    """What the models write, to be read by a person."""
    tokenizer = _load_tokenizer(options)
    for name in ("perch", "minnow"):
        if not (options.work / f"{name}.safetensors").exists():
            continue
        model = _model(options, name, name)
        for prompt in _SHOWN:
            ids = torch.tensor([[0, *tokenizer.encode(prompt).ids]], device=_device())
            for temperature in (0.0, 0.8):
                row = sample(model, ids, min(CONTEXT, ids.shape[1] + 96), temperature, _device(), 0)[0].tolist()
                text = tokenizer.decode(row[ids.shape[1] :], skip_special_tokens=False).split(END_OF_TEXT)[0]
                print(f"[{name} T={temperature}] {prompt!r} -> {text!r}", flush=True)


_STEPS = {
    "tokenizer": _tokenizer,
    "encode": _encode,
    "perch": _perch,
    "minnow": _minnow,
    "distill": _distill,
    "evaluate": _evaluate,
    "samples": _samples,
}

main()
