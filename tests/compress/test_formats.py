"""Reading with the engine: its logits are the model's own, and formats drift in the order of what they leave out."""

from typing import Any

import pytest
import torch

from archerfish.bench.ladder.naive import WholeSequence
from archerfish.compress.formats import _cut, _logits, _opened, lossy_formats, measure_formats
from archerfish.config.settings import EngineConfig
from archerfish.engine.models import load_decoder
from archerfish.errors import ConfigError
from tests.ops.cpu.native import needs_native

STORY = "Once upon a time there was a little fish. It lived in a pond with its mother. " * 12


def test_logits_are_those_of_the_whole_text_at_once() -> None:
    with _opened("minnow", {"dtype": "float32"}) as assembly:
        text = assembly.processor.token_ids(STORY)[:150]
        found = _logits(assembly, text)
    model = load_decoder(EngineConfig(model="minnow", dtype="float32", device="cpu"))
    with torch.inference_mode():
        wanted = model.logits(model(torch.tensor(text), torch.arange(len(text)), WholeSequence(model)))
    torch.testing.assert_close(found, wanted[:-1], atol=1e-3, rtol=1e-3)


def test_documents_are_cut_to_what_is_read_at_once() -> None:
    with _opened("minnow", {"dtype": "float32"}) as assembly:
        whole = assembly.processor.token_ids(STORY * 4)
        texts = _cut(assembly, [STORY * 4, "Fish", STORY], len(whole) + 20)
        longest = assembly.config.max_model_len - 1
        with pytest.raises(ConfigError, match="nothing to predict"):
            _cut(assembly, [""], 100)
    assert [token for text in texts for token in text][: len(whole)] == list(whole)
    assert sum(map(len, texts)) == len(whole) + 20
    assert max(map(len, texts)) == longest < len(whole)


@needs_native
def test_what_is_rounded_more_finely_drifts_less() -> None:
    chosen = ("int8", "KV cache int8", "int4, groups of 64", "int4, groups of 64, to nearest")
    listed = {name: lossy_formats("cpu")[name] for name in chosen}
    reports: list[tuple[str, float]] = []
    entries = list(measure_formats(None, None, 2, listed, lambda name, share: reports.append((name, share))))
    assert [entry.format for entry in entries] == list(chosen)
    int8, cache, calibrated, nearest = (entry.drift for entry in entries)
    assert int8 and cache and calibrated and nearest
    assert {drift.num_tokens for drift in (int8, cache, calibrated, nearest)} == {32 * 127}
    assert 0 < cache.divergence < int8.divergence
    assert 0 < int8.divergence < calibrated.divergence / 4
    assert calibrated.divergence < nearest.divergence * 0.6
    assert nearest.agreement < calibrated.agreement < int8.agreement
    assert reports[-1] == (chosen[-1], 1.0)


@needs_native
def test_formats_name_settings_that_exist() -> None:
    def settings(values: Any) -> EngineConfig:
        return EngineConfig(**values)

    for device, lossy in (("cpu", "int8"), ("cuda", "fp8")):
        listed = lossy_formats(device)
        assert all(settings(values) for values in listed.values())
        assert f"KV cache {lossy}" in listed and {"bfloat16", "int8", "w8a8", "int4, groups of 64"} <= listed.keys()
    assert "fp8" in lossy_formats("cuda") and "fp8" not in lossy_formats("cpu")


def test_a_format_that_cannot_run_is_listed_with_the_reason() -> None:
    [entry] = measure_formats("minnow", [STORY], 50, {"fp8": {"quantization": "fp8", "device": "cpu"}}, lambda *_: None)
    assert entry.drift is None and entry.reason is not None and "fp8" in entry.reason
