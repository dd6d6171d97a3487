"""Calibration sees what the matrices of the full model see, whatever kinds of layers it has."""

import pytest
import torch
from torch import Tensor

from archerfish.arch import Arch, AttentionSpec, LayerSpec, MlpSpec, NormSpec, RopeSpec
from archerfish.bench.ladder.naive import WholeSequence
from archerfish.models.decoder import Decoder
from archerfish.models.layers import Linear
from archerfish.ops import KernelTarget, choose_ops, implementations
from archerfish.ops.packed import PackedWeight
from archerfish.quant import InputStatistics, WeightFormat
from archerfish.weights.calibration import CalibratedPacker
from archerfish.weights.load import random_weights
from tests.ops.cpu.native import KERNELS, native, needs_native

pytestmark = needs_native

TARGET = KernelTarget(device="cpu", dtype="float32")
TEXTS = torch.tensor([[1, 5, 9, 2, 7, 7], [3, 3, 8, 0, 4, 6]])


def layer(window: int | None = None, kv_source: int | None = None, softcap: float | None = None) -> LayerSpec:
    rope = RopeSpec(theta=10_000.0, dim=16)
    shape = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "scale": 0.25, "rope": rope}
    attention = AttentionSpec(**shape, window=window, kv_source=kv_source, softcap=softcap)  # type: ignore[arg-type]
    return LayerSpec(attention=attention, feed_forward=MlpSpec(size=80))


ARCH = Arch(
    family="test",
    vocab_size=11,
    hidden_size=32,
    layers=(layer(), layer(window=3, softcap=5.0), layer(kv_source=0)),
    norm=NormSpec(),
    max_positions=64,
)


def inputs_in_full() -> list[Tensor]:
    """Of every matrix in the layers' order, by the reference operations over one text after the other."""
    model = Decoder(ARCH, choose_ops(TARGET).ops, 64)
    random_weights(model, seed=0)
    seen: dict[str, list[Tensor]] = {}
    for name, module in model.layers.named_modules():
        if isinstance(module, Linear):
            module.register_forward_pre_hook(lambda _, given, of=name: seen.setdefault(of, []).append(given[0]))
    with torch.inference_mode():
        for text in TEXTS:
            model(text, torch.arange(len(text)), WholeSequence(model))
    return [torch.cat(parts) for parts in seen.values()]


def test_it_sees_the_inputs_of_the_full_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.device("meta"):
        model = Decoder(ARCH, choose_ops(TARGET, implementations(native(KERNELS[0]))).ops, 64)
    seen: list[Tensor] = []
    make = InputStatistics.of

    def note(inputs: Tensor) -> InputStatistics:
        seen.append(inputs.clone())
        return make(inputs)

    monkeypatch.setattr(InputStatistics, "of", note)
    random_weights(model, 0, CalibratedPacker(model, WeightFormat(name="int4", calibrated=True), TEXTS))
    wanted = inputs_in_full()
    assert len(seen) == len(wanted) == 4 * len(ARCH.layers)
    for found, exact in zip(seen, wanted, strict=True):
        # Words are int8 by then: what comes in is a little off from the start.
        torch.testing.assert_close(found, exact, atol=0.1, rtol=0.1)
    assert all(isinstance(part.weight, PackedWeight) for part in model.modules() if isinstance(part, Linear))


def test_where_inputs_are_no_numbers_it_rounds_to_nearest_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    weight_format = WeightFormat(name="int4", calibrated=True)
    with torch.device("meta"):
        model = Decoder(ARCH, choose_ops(TARGET, implementations(native(KERNELS[0]))).ops, 64)
    pack = CalibratedPacker(model, weight_format, TEXTS)
    full: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> None:
        if name == "layers.1.mlp.down.weight":
            tensor[0, 0] = torch.nan
        full[name] = tensor.clone()
        pack(name, tensor)

    random_weights(model, 0, keep)
    reported = {message.split()[0] for message in caplog.messages if "is rounded to nearest" in message}
    # Attention may or may not let them through to its own output.
    others = {f"layers.2.{name}.weight" for name in ("attention.qkv", "mlp.up", "mlp.down")}
    assert others <= reported <= others | {"layers.2.attention.output.weight"}
    for name in ("layers.0.mlp.up.weight", "layers.2.mlp.up.weight"):
        nearest, found = weight_format.pack(full[name]), model.get_submodule(name.removesuffix(".weight")).weight
        assert torch.equal(found.data, nearest.data) == (name in reported)
