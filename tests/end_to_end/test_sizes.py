"""An engine of any size is refused with the name of a setting, or writes the very tokens of a large one."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from archerfish import LLM, SamplingParams
from archerfish.errors import ConfigError, DoesNotFit
from tests.checkpoints import CONFIG
from tests.lanes import examples

PROMPTS = [[5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6], [9, 8], [5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6], [11]]
"""One of them twice: most of it is in the prefix cache by then."""
MAX_TOKENS = 30
LARGE: dict[str, Any] = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 256}
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 4
"""Of the KV cache: keys and values, of two layers, with two heads, of 16 float32 numbers."""

SIZES = st.fixed_dictionaries(
    {
        "max_num_batched_tokens": st.sampled_from([1, 2, 3, 5, 8, 16, 64]),
        "max_model_len": st.sampled_from([2, 3, 4, 6, 9, 17, 33, 48]),
        "max_num_seqs": st.sampled_from([1, 2, 4]),
        "block_size": st.sampled_from([16, 32, 48, 1, 2, 3]),
        "enable_prefix_caching": st.booleans(),
    }
)
DRAFTS = st.one_of(
    st.sampled_from([{"method": "off"}, {"method": "auto"}]),
    st.fixed_dictionaries(
        {
            "method": st.sampled_from(["suffix", "lookahead", "draft_model"]),
            "num_speculative_tokens": st.sampled_from([None, 1, 2, 5, 16]),
        }
    ),
)
SMALLEST = {"max_num_batched_tokens": 1, "max_model_len": 2, "max_num_seqs": 1, "enable_prefix_caching": True}


@cache
def model(num_layers: int) -> Path:
    """A config alone: random weights, in heads that native kernels can run."""
    directory = Path(mkdtemp())
    (directory / "config.json").write_text(json.dumps({**CONFIG, "head_dim": 16, "num_hidden_layers": num_layers}))
    return directory


def written(max_tokens: Mapping[int, int], **sizes: Any) -> dict[int, list[int]]:
    """By prompt, as many tokens as are named, greedily."""
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in max_tokens.values()]
    with LLM(
        str(model(2)), load_format="dummy", skip_tokenizer_init=True, threads=1, check_invariants=True, **sizes
    ) as llm:
        outputs = llm.generate([PROMPTS[index] for index in max_tokens], params, progress=False)
    return {index: output.outputs[0].token_ids for index, output in zip(max_tokens, outputs, strict=True)}


@cache
def wanted(kernels: str) -> dict[int, list[int]]:
    whole = dict.fromkeys(range(len(PROMPTS)), MAX_TOKENS)
    return written(whole, **LARGE, kernels=kernels, speculative_config={"method": "off"})


@examples(70)
@given(SIZES, DRAFTS, st.sampled_from([1, 2]), st.sampled_from([None, 0, 1, 3]))
@example({**SMALLEST, "block_size": 16}, {"method": "auto"}, 1, 0)
@example({**SMALLEST, "block_size": 1}, {"method": "auto"}, 1, 0)
@example({**SMALLEST, "block_size": 16}, {"method": "draft_model", "num_speculative_tokens": 16}, 1, 0)
@example({**SMALLEST, "block_size": 1}, {"method": "draft_model", "num_speculative_tokens": 16}, 1, 0)
@example({**SMALLEST, "block_size": 16}, {"method": "lookahead", "num_speculative_tokens": 16}, 1, 0)
@example({**SMALLEST, "block_size": 16}, {"method": "suffix", "num_speculative_tokens": 16}, 1, 0)
def test_it_is_refused_by_name_or_writes_the_same_tokens(
    sizes: dict[str, Any], drafts: dict[str, Any], num_draft_layers: int, spare_blocks: int | None
) -> None:
    drafts, length = dict(drafts), sizes["max_model_len"]
    if drafts["method"] == "draft_model":
        drafts["model"] = str(model(num_draft_layers))
    if spare_blocks is not None:
        # Memory for a request or a little more: sequences are preempted.
        layers = 2 + (num_draft_layers if drafts["method"] == "draft_model" else 0)
        num_blocks = -(-length // sizes["block_size"]) + spare_blocks
        sizes = {**sizes, "kv_cache_memory_bytes": num_blocks * sizes["block_size"] * BYTES_PER_TOKEN * layers // 2}
    kernels = "reference" if sizes["block_size"] % 16 else "auto"
    fitting = {index: min(MAX_TOKENS, length - len(prompt)) for index, prompt in enumerate(PROMPTS)}
    fitting = {index: count for index, count in fitting.items() if count > 0}
    try:
        found = written(fitting, **sizes, kernels=kernels, speculative_config=drafts)
    except (ConfigError, DoesNotFit) as error:
        assert any("--" + name.replace("_", "-") in str(error) for name in sizes), error
        return
    assert found == {index: wanted(kernels)[index][:count] for index, count in fitting.items()}
