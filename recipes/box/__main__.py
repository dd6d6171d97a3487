"""One step of the recipe, or several: python -m recipes.box STEP ... --data DIR --work DIR.

tokenizer    train it on the packs (once; it is small enough to keep)
encode       unpack and encode whichever packs lie in --data; packs may be brought over one at a time
perch-main   train the larger model, the main phase
perch        its last phase, on the cleaner mixture
minnow-main  train the smaller one, the main phase
minnow-plain its last phase, by itself
minnow       its last phase again, this time distilled from perch
export       write what has been trained as model directories
evaluate     bits per byte of what has been trained so far, and how well minnow drafts
"""

import argparse
import json
import random
import time
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from archerfish.models.decoder import Decoder
from recipes.box import corpus, mixture
from recipes.box.distill import OwnRows, agreement, imitation_loss
from recipes.box.evaluate import evaluate, held_out_prompts
from recipes.box.export import export
from recipes.box.model import load_parameters, new_model
from recipes.box.optimizer import fall, rise, rise_and_fall
from recipes.box.pack import Packed, pack
from recipes.box.tokenizer import save_tokenizer, train_tokenizer
from recipes.box.train import DataRows, HeldOut, TrainingPlan, compiled, next_token_loss, train

_TOKENIZER_BYTES = 40_000_000
_TRAINED = {"perch": "perch", "minnow-plain": "minnow", "minnow": "minnow"}
"""The shape of each model that training saves, by name."""
_BYTES_FOR_CURVES = 150_000


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="recipes.box", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("steps", nargs="+", choices=list(_STEPS))
    parser.add_argument("--data", type=Path, required=True, help="where the packs are, and eval/")
    parser.add_argument("--work", type=Path, required=True, help="where everything that is made goes")
    parser.add_argument("--minutes", type=float, default=5.0, help="that each training step takes")
    parser.add_argument("--rows", type=int, default=64, help="of the context's length, in one step")
    parser.add_argument("--own-rounds", type=int, default=1, help="of what perch writes for minnow to learn from")
    parser.add_argument(
        "--final-weight", action="append", default=[], metavar="SOURCE=WEIGHT", help="another weight in the last phase"
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    for step in options.steps:
        print(f"== {step}", flush=True)
        started = time.monotonic()
        _STEPS[step](options)
        print(f"   {step} took {time.monotonic() - started:.0f} s", flush=True)


def _tokenizer(options: argparse.Namespace) -> None:
    raw = options.work / "raw"
    corpus.unpack(options.data, raw)
    sources = mixture.mixed_sources(raw)
    sources += mixture.book_sources(raw) if (raw / corpus.BOOKS_FILE).exists() else []
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
    """Return a new model, or a saved one."""
    model = new_model(name, _device())
    if saved_as is not None:
        load_parameters(model, options.work / f"{saved_as}.safetensors")
    return model


def _data(options: argparse.Namespace) -> DataRows:
    weights = {name: float(weight) for name, weight in (one.split("=") for one in options.final_weight)}
    return DataRows(Packed(options.work / "packed", weights), options.rows, _device())


def _held_out(options: argparse.Namespace) -> HeldOut:
    tokenizer = _load_tokenizer(options)
    return lambda model: evaluate(model, tokenizer, options.data / "eval", _device(), _BYTES_FOR_CURVES)


def _main_phase(shape: str, options: argparse.Namespace) -> None:
    plan = TrainingPlan(f"{shape}-main", options.work, options.minutes * 60, rise, final=False)
    loss = compiled(next_token_loss, _device())
    train(plan, _model(options, shape), _data(options), loss, _held_out(options))


def _last_phase(shape: str, save_as: str, options: argparse.Namespace) -> None:
    plan = TrainingPlan(save_as, options.work, options.minutes * 60, fall, final=True)
    loss = compiled(next_token_loss, _device())
    train(plan, _model(options, shape, f"{shape}-main"), _data(options), loss, _held_out(options))


def _distill(options: argparse.Namespace) -> None:
    teacher = _model(options, "perch", "perch").requires_grad_(False)
    student = _model(options, "minnow", "minnow-main")
    started = time.monotonic()
    rows = OwnRows(teacher, _data(options), options.own_rounds, _device())
    taken = time.monotonic() - started
    print(f"perch wrote {rows.num_own_tokens / 1e6:.1f} M tokens in {taken:.0f} s", flush=True)
    plan = TrainingPlan("minnow", options.work, options.minutes * 60 - taken, rise_and_fall, final=True)
    train(plan, student, rows, compiled(imitation_loss(teacher), _device()), _held_out(options))


def _exported(options: argparse.Namespace, saved_as: str) -> Path:
    return Path(options.work / "exported" / saved_as)


def _export(options: argparse.Namespace) -> None:
    for saved_as, shape in _TRAINED.items():
        if (options.work / f"{saved_as}.safetensors").exists():
            model = _model(options, shape, saved_as)
            export(shape, model, options.work / "tokenizer", _exported(options, saved_as))


def _evaluate(options: argparse.Namespace) -> None:
    """Evaluate the weights as they are published, rounded to bfloat16."""
    tokenizer, models = _load_tokenizer(options), {}
    for saved_as, shape in _TRAINED.items():
        if (options.work / f"{saved_as}.safetensors").exists():
            models[saved_as] = _model(options, shape, saved_as).to(torch.bfloat16).float()
    results: dict[str, dict[str, float]] = {}
    for saved_as, model in models.items():
        results[saved_as] = evaluate(model, tokenizer, options.data / "eval", _device())
        if _TRAINED[saved_as] == "minnow":
            prompts = held_out_prompts(tokenizer, options.data / "eval").to(_device())
            results[saved_as]["agreement"] = round(agreement(models["perch"], model, prompts, 256, _device()), 4)
        print(saved_as, json.dumps(results[saved_as]), flush=True)
    (options.work / "results.json").write_text(json.dumps(results, indent=2))


_STEPS = {
    "tokenizer": _tokenizer,
    "encode": _encode,
    "perch-main": partial(_main_phase, "perch"),
    "perch": partial(_last_phase, "perch", "perch"),
    "minnow-main": partial(_main_phase, "minnow"),
    "minnow-plain": partial(_last_phase, "minnow", "minnow-plain"),
    "minnow": _distill,
    "export": _export,
    "evaluate": _evaluate,
}

if __name__ == "__main__":
    main()
