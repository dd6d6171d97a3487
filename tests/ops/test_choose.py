"""The choice of implementations: first that supports the target, with the reasons against those before it."""

from dataclasses import fields

import pytest

from archerfish.arch import LayerSpec, MlpSpec
from archerfish.errors import NoKernel
from archerfish.ops import KernelTarget, Ops, choose_ops
from archerfish.ops.choose import Implementation, implementations
from archerfish.ops.reference import IMPLEMENTATIONS
from tests.arch.shapes import arch, attention

CPU = KernelTarget(device="cpu", dtype="bfloat16")


def always(_):
    return None


def implementation(name, reason=None, operation="attend"):
    def function():
        return name

    return Implementation(operation, name, function, lambda _: reason)


def chosen(*candidates):
    ops, choices = choose_ops(CPU, [*candidates, *implementations()])
    return ops, {choice.operation: choice for choice in choices}


def test_the_reference_has_every_operation_and_runs_everywhere():
    assert set(IMPLEMENTATIONS) == {field.name for field in fields(Ops)}
    for target in (CPU, KernelTarget(device="cuda", dtype="float16"), KernelTarget(device="cpu", dtype="float32")):
        ops, choices = choose_ops(target)
        assert [choice.operation for choice in choices] == [field.name for field in fields(Ops)]
        for field in fields(Ops):
            assert callable(getattr(ops, field.name))


def test_the_reference_comes_last():
    listed = [one for one in implementations() if one.operation == "attend"]
    assert listed[-1].name == "reference"


def test_the_first_that_supports_the_target_is_taken():
    ops, choices = chosen(implementation("fast"), implementation("faster"))
    assert ops.attend() == "fast"
    assert choices["attend"].name == "fast"
    assert choices["attend"].rejected == ()


def test_reasons_against_those_before_it_are_in_order_and_none_after_it():
    ops, choices = chosen(
        implementation("tensor cores", "needs sm_90"),
        implementation("triton", "no triton here"),
        implementation("native"),
        implementation("never consulted", "would not do either"),
    )
    assert ops.attend() == "native"
    assert choices["attend"].rejected == (("tensor cores", "needs sm_90"), ("triton", "no triton here"))


def test_operations_are_chosen_one_by_one():
    ops, choices = chosen(implementation("fast norm", operation="rms_norm"), implementation("no", "too old"))
    assert ops.rms_norm() == "fast norm"
    assert choices["attend"].name == "reference"
    assert choices["linear"].rejected == ()


def test_an_implementation_is_given_the_very_target():
    targets = []

    def supports(target):
        targets.append(target)

    choose_ops(CPU, [Implementation("attend", "curious", always, supports), *implementations()])
    assert targets == [CPU]


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("softcap", [None, 30.0])
def test_an_implementation_can_refuse_the_shape_of_a_model(window, softcap):
    specs = (attention(2, 1, 96), attention(2, 1, 96, window=window, softcap=softcap))
    model = arch(64, 32, [LayerSpec(attention=spec, feed_forward=MlpSpec(size=8)) for spec in specs])
    target = KernelTarget.of_model(model, device="cpu", dtype="float32", block_size=16)
    assert (target.device, target.dtype, target.head_dim, target.block_size) == ("cpu", "float32", 96, 16)
    assert (target.has_window, target.has_softcap) == (window is not None, softcap is not None)

    def supports(target):
        return "no windows" if target.has_window else f"head size {target.head_dim}" if target.head_dim != 64 else None

    _, choices = choose_ops(target, [Implementation("attend", "choosy", always, supports), *implementations()])
    rejected = {choice.operation: choice.rejected for choice in choices}
    assert rejected["attend"] == (("choosy", "head size 96" if window is None else "no windows"),)


def test_when_none_fits_the_error_lists_what_was_tried_and_why_not():
    candidates = [one for one in implementations() if one.operation != "attend"]
    candidates += [implementation("triton", "no GPU"), implementation("native", "needs AVX-512")]
    with pytest.raises(NoKernel) as caught:
        choose_ops(CPU, candidates)
    message = str(caught.value)
    assert "attend" in message
    assert "bfloat16" in message
    assert "cpu" in message
    assert message.index("triton: no GPU") < message.index("native: needs AVX-512")


def test_when_there_is_none_at_all_the_error_says_so():
    with pytest.raises(NoKernel, match=r"attend.*there is none"):
        choose_ops(CPU, [one for one in implementations() if one.operation != "attend"])
