"""What speculative_config means, also as vLLM's users write it."""

from typing import Any

import pytest

from archerfish.config.speculation import SpeculationConfig
from archerfish.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"method": "reference"}, {"method": "suffix"}),
        ({"method": "suffix"}, {"method": "suffix"}),
        (
            {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
            {"method": "suffix", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2},
        ),
        ({"method": "eagle3", "model": "m"}, {"method": "eagle", "model": "m"}),
        ({"model": "m", "num_speculative_tokens": 3}, {"model": "m", "num_speculative_tokens": 3}),
        ({"method": "medusa", "model": "m", "quantization": None}, {"method": "medusa", "model": "m"}),
        (
            {
                "method": "draft_model",
                "model": "m",
                "draft_tensor_parallel_size": 1,
                "disable_padded_drafter_batch": True,
                "parallel_drafting": False,
                "enforce_eager": False,
                "max_model_len": None,
            },
            {"method": "draft_model", "model": "m"},
        ),
    ],
)
def test_keys_and_methods_of_vllm_are_read(given: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert SpeculationConfig.read(given) == SpeculationConfig(**wanted)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "mtp"}, "method 'mtp': .*use draft_model, eagle or medusa"),
        ({"method": "magic"}, "method 'magic' is none of"),
        ({"draft_tensor_parallel_size": 2}, "draft_tensor_parallel_size 2: .*leave it out"),
        ({"draft_tensor_parallel_size": True}, "draft_tensor_parallel_size True"),
        ({"rejection_sample_method": "synthetic"}, "use verification"),
        ({"max_model_len": 5}, "max_model_len 5: .*leave it out"),
        ({"nonsense": 5}, "has no key 'nonsense'; it knows method, model"),
        ({"num_speculative_tokens": 5}, "needs a named method"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max 0 must be a number from 1"),
        ({"method": "ngram", "prompt_lookup_max": 2.0}, "prompt_lookup_max 2.0 must be a number from 1"),
        ({"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}, "prompt_lookup_min 3 is more than"),
        ({"method": "eagle", "prompt_lookup_max": 2}, "prompt_lookup_max needs ngram or suffix, not eagle"),
        ({"method": "ngram", "num_speculative_tokens": 10**9}, "must be a number from 1 to 63"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SpeculationConfig.read(given)
