"""What formats of weights, keys and values do to a model: perplexity, and how often the likeliest token stays.

python benchmarks/quality_of_formats.py TEXT, where lines <|endoftext|> part documents.
"""

import argparse
import math
from pathlib import Path
from typing import Any

from workbench import show

from archerfish import LLM, SamplingParams

FORMATS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "keys and values int8": {"kv_cache_dtype": "int8"},
    "int8": {"quantization": "int8"},
    "int8, keys and values too": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "w8a8": {"quantization": "w8a8"},
    "int4, groups of 32": {"quantization": "int4", "quantization_group": 32},
    "int4, groups of 64": {"quantization": "int4"},
    "int4, groups of 64, zero points": {"quantization": "int4", "quantization_zero_points": True},
    "int4, groups of 128": {"quantization": "int4", "quantization_group": 128},
}
LONGEST, SHORTEST = 3000, 400  # Characters of a document: what fits, and what is worth reading.


def read(model: str | None, documents: list[str], settings: dict[str, Any]) -> tuple[float, list[int]]:
    """Perplexity, and the likeliest token at every place."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
    with LLM(model, max_num_seqs=8, enable_prefix_caching=False, **settings) as llm:
        outputs = llm.generate(documents, params)
    logprobs, likeliest = [], []
    for output in outputs:
        assert output.prompt_logprobs is not None and output.prompt_token_ids is not None
        for token, entries in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
            assert entries is not None
            logprobs.append(entries[token].logprob)
            likeliest.append(max(entries, key=lambda one: entries[one].logprob))
    return math.exp(-sum(logprobs) / len(logprobs)), likeliest


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--documents", type=int, default=150)
    options = parser.parse_args()
    parts = (part.strip() for part in options.text.read_text(encoding="utf-8").split("<|endoftext|>"))
    documents = [part[:LONGEST] for part in parts if len(part) > SHORTEST][: options.documents]
    rows = []
    exact, wanted = read(options.model, documents, FORMATS["float32"])
    for name, settings in FORMATS.items():
        perplexity, likeliest = read(options.model, documents, settings)
        same = sum(one == other for one, other in zip(likeliest, wanted, strict=True)) / len(wanted)
        rows.append([name, f"{perplexity:.3f}", f"{perplexity / exact - 1:+.2%}", f"{same:.1%}"])
    show(f"{len(wanted):,} tokens", ["format", "perplexity", "against float32", "same likeliest token"], rows)
