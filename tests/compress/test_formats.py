"""Reading with the engine: its logits are the model's own, and formats drift in the order of what they leave out."""

from typing import Any

import pytest
import torch

from archerfish.bench.ladder.naive import WholeSequence
from archerfish.compress import formats
from archerfish.compress.formats import _cut, _logits, _opened, measure_formats
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
        with pytest.raises(ConfigError, match="nothing to foretell"):
            _cut(assembly, [""], 100)
    assert [token for text in texts for token in text][: len(whole)] == list(whole)
    assert sum(map(len, texts)) == len(whole) + 20
    assert max(map(len, texts)) == longest < len(whole)


@needs_native
def test_what_is_rounded_more_finely_drifts_less(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = ("int8", "int4, groups of 64", "int4, groups of 64, to nearest")
    monkeypatch.setattr(formats, "FORMATS", {name: formats.FORMATS[name] for name in chosen})
    told: list[tuple[str, float]] = []
    found = list(measure_formats(None, None, 2, lambda name, share: told.append((name, share))))
    assert [one.format for one in found] == list(chosen)
    assert {one.drift.num_tokens for one in found} == {32 * 127}
    int8, calibrated, nearest = (one.drift for one in found)
    assert 0 < int8.divergence < calibrated.divergence / 4
    assert calibrated.divergence < nearest.divergence * 0.6
    assert nearest.agreement < calibrated.agreement < int8.agreement
    assert told[-1] == (chosen[-1], 1.0)


@needs_native
def test_formats_name_settings_that_exist() -> None:
    def settings(values: Any) -> EngineConfig:
        return EngineConfig(**values)

    assert all(settings(values) for values in formats.FORMATS.values())
