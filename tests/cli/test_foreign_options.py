"""Options of other engines on the command line: those without effect are accepted, the rest says what to use."""

import pytest

from tests.cli.running import MODEL, archerfish, assert_refused

ONE = ("--max-tokens", "1", "--temperature", "0")


def test_options_without_effect_change_nothing() -> None:
    plain = archerfish("generate", "Once", *MODEL, *ONE)
    foreign = archerfish(
        *("generate", "--tensor-parallel-size", "1", "--trust-remote-code", "Once", *MODEL, *ONE, "--swap-space=4"),
        *("--enable-chunked-prefill", "--disable-log-requests", "--no-enforce-eager", "--tokenizer-mode", "auto"),
        *(
            "--no-enable-lora",
            "--dtype",
            "float",
            "--no-async-scheduling",
            "--max-log-len",
            "10",
            "--use-v2-block-manager",
        ),
        *("--limit-mm-per-prompt", '{"image": 0}', "--limit-mm-per-prompt=image=0", "--disable-cascade-attn"),
    )
    assert plain.exit_code == foreign.exit_code == 0, foreign.stderr
    assert foreign.stdout == plain.stdout
    assert "no code of a checkpoint is ever run" in foreign.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--tensor-parallel-size", "2"), "--tensor-parallel-size 2: Archerfish runs a model on one device"),
        (("--tensor-parallel-size=2",), "use a smaller quantization, such as --quantization int8"),
        (("--enable-lora",), "error: --enable-lora: LoRA adapters are not supported"),
        (
            ("--no-enable-chunked-prefill",),
            "error: --no-enable-chunked-prefill: prompts longer than a step are always cut; set --max-num-",
        ),
        (("--ctx-size", "4096"), "--ctx-size 4096: use --max-model-len"),
        (("-c", "4096"), "error: -c 4096: use --max-model-len"),
        (("-n", "8"), "error: -n 8: use --max-tokens"),
        (("-ngl", "99"), "error: -ngl 99: all layers run on one device; use --device cuda"),
        (("-m", "m.gguf"), "error: -m m.gguf: use --model"),
        (("--context-length", "4096"), "use --max-model-len"),
        (("--mem-fraction-static", "0.8"), "use --gpu-memory-utilization"),
        (("--generation-config", "vllm"), "--generation-config vllm: "),
        (("--compilation-config", '{"level": 3}'), "use --kernels reference"),
        (("--quantization", "awq"), "quantized already are not read"),
        (("--tool-call-parser", "hermes"), "--tool-call-parser hermes: tool calls are part of the text here"),
        (("--disable-radix-cache",), "--disable-radix-cache: use --no-enable-prefix-caching"),
        (("--ssl-keyfile", "k"), "--ssl-keyfile k: it is for archerfish serve; leave it out"),
        (("--max-logprobs", "1"), "--max-logprobs 1: as many may be requested"),
    ],
)
def test_options_with_an_effect_say_what_to_use(arguments: tuple[str, ...], says: str) -> None:
    assert_refused(archerfish("generate", "Once", *arguments), says)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("--max-model-length", "--max-model-len"),
        ("--max-num-batched-token", "--max-num-batched-tokens"),
        ("--zzz", None),
        ("--max-size", None),
        ("--peak", None),
    ],
)
def test_unknown_options_are_answered_by_those_that_are_nearly_the_same_or_by_none(
    option: str, hint: str | None
) -> None:
    result = archerfish("generate", "Once", option, "1")
    assert result.exit_code == 2
    assert ("Did you mean" in result.stderr) == (hint is not None) and (hint or "") in result.stderr


def test_a_value_is_a_value_whatever_it_looks_like() -> None:
    assert_refused(archerfish("generate", "Once", "--stop", "--swap-space", "--n", "0"), "--n 0 is not valid")
    # Behind -- all are prompts.
    result = archerfish("generate", *MODEL, *ONE, "--", "--ctx-size")
    assert result.exit_code == 0, result.stderr


def test_switching_graphs_off_leaves_the_kernels() -> None:
    eager = archerfish("generate", "Once", *MODEL, *ONE, "--enforce-eager")
    assert eager.exit_code == 0, eager.stderr
    assert eager.stdout == archerfish("generate", "Once", *MODEL, *ONE).stdout
    assert "native and Triton kernels stay in use" in eager.stderr and "--kernels reference is plain" in eager.stderr


@pytest.mark.parametrize("flag", [("-fa",), ("-fa", "on"), ("--flash-attn=off",), ("--no-flash-attn",)])
def test_a_switch_may_have_a_word_behind_it(flag: tuple[str, ...]) -> None:
    result = archerfish("generate", *flag, "Once", *MODEL, *ONE)
    assert result.exit_code == 0 and result.stdout.count("\n") == 1, result.stderr
    assert ("attention never stores its scores" in result.stderr) == (
        flag[-1] in ("--flash-attn=off", "--no-flash-attn")
    )


@pytest.mark.parametrize("command", [("serve",), ("chat",), ("bench", "latency"), ("bench", "throughput"), ("batch",)])
def test_every_command_with_an_engine_knows_them(command: tuple[str, ...]) -> None:
    assert_refused(archerfish(*command, "--tensor-parallel-size", "4"), "Archerfish runs a model on one device")


def test_the_help_does_not_list_them() -> None:
    result = archerfish("generate", "--help")
    assert "tensor-parallel" not in result.stdout and "ctx-size" not in result.stdout
