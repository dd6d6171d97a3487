"""Sizing the KV cache: what fits is used, what does not is explained, and the remedy it names works."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.arch.cost import weight_bytes
from archerfish.config import EngineConfig
from archerfish.config.numbers import format_bytes
from archerfish.config.resolve import ResolveFacts, resolve
from archerfish.errors import DoesNotFit
from archerfish.execution.memory import CacheSize, DrafterMemory, MemoryBudget, MemoryOption
from archerfish.kvcache.layout import kv_layout
from archerfish.kvcache.tables import blocks_held
from tests.execution.archs import ALL, FULL, MAX_POSITIONS, MIXED, VOCABULARY, WINDOWED
from tests.lanes import examples

BYTES_PER_VALUE = 4
FACTS = ResolveFacts(
    max_positions=MAX_POSITIONS,
    checkpoint_dtype="float32",
    can_extend=False,
    has_cuda=False,
    num_cores=1,
    num_parameters=1,
)
ENOUGH = 2**40


def config(**changes):
    given = {"max_model_len": 512, "max_num_seqs": 4, "max_num_batched_tokens": 64, "gpu_memory_utilization": 0.5}
    return EngineConfig(**(given | changes))


def sized(arch, settings, available):
    memory = MemoryBudget(arch, kv_layout(arch), available, BYTES_PER_VALUE)
    return memory.size_cache(resolve(settings, FACTS))


class Needs:
    """What an arch needs under some settings, counted here once more."""

    def __init__(self, arch, settings):
        resolved, layout = resolve(settings, FACTS), kv_layout(arch)
        self.weights = int(weight_bytes(arch, BYTES_PER_VALUE))
        self.activations = MemoryBudget(arch, layout, 0, BYTES_PER_VALUE).activations(resolved)
        self.block = layout.block_bytes(resolved.block_size, BYTES_PER_VALUE)
        self.blocks_per_request = blocks_held(
            resolved.max_model_len, layout.windows, resolved.block_size, resolved.max_num_batched_tokens
        )
        self.kv = self.block * self.blocks_per_request
        self.total = self.weights + self.activations + self.kv


@st.composite
def cases(draw):
    """(name of the arch, settings, available) anywhere from hopeless to plenty."""
    name = draw(st.sampled_from(sorted(ALL)))
    steps = draw(st.sampled_from([1, 2, 16, 31, 64, 512, 4096]))
    settings = config(
        max_model_len=draw(st.sampled_from([2, 7, 100, 512, 1000, 4096])),
        block_size=draw(st.sampled_from([1, 8, 16, 64])),
        max_num_batched_tokens=steps,
        max_num_seqs=min(steps, draw(st.sampled_from([1, 3, 8, 64, 4000]))),
        gpu_memory_utilization=draw(st.sampled_from([0.1, 0.5, 0.57, 0.9, 1.0])),
    )
    needs = Needs(ALL[name], settings)
    if draw(st.booleans()):
        settings = replace(settings, kv_cache_memory_bytes=int(needs.kv * draw(st.floats(0.01, 8.0))))
    parts = (needs.weights, needs.activations, needs.kv)
    available = sum(int(part * draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1.1, 2.5]))) for part in parts)
    return name, settings, available + draw(st.integers(1, 7))


def remedy(caught):
    """The flags and values of the last line."""
    last = str(caught).splitlines()[-1]
    return {name.replace("-", "_"): value for name, value in re.findall(r"--([a-z-]+) (\d+(?:\.\d+)?)", last)}


def applied(settings, flags):
    numbers = {name: float(value) if name == "gpu_memory_utilization" else int(value) for name, value in flags.items()}
    return replace(settings, **numbers)


@examples(400)
@given(cases())
def test_what_fits_fits_and_what_does_not_names_a_remedy_that_works(case):
    name, asked, available = case
    arch = ALL[name]
    try:
        size = sized(arch, asked, available)
    except DoesNotFit as caught:
        flags = remedy(caught)
        if flags:
            sized(arch, applied(asked, flags), available)
        else:
            smallest = replace(
                asked,
                max_model_len=2,
                max_num_seqs=1,
                max_num_batched_tokens=1,
                gpu_memory_utilization=max(0.95, asked.gpu_memory_utilization),
            )
            with pytest.raises(DoesNotFit):
                sized(arch, replace(smallest, kv_cache_memory_bytes=None), available)
    else:
        assert size.num_blocks >= Needs(arch, asked).blocks_per_request


@examples(300)
@given(cases())
def test_a_cache_never_exceeds_the_memory_with_weights_and_activations(case):
    name, asked, available = case
    arch = ALL[name]
    try:
        size = sized(arch, asked, available)
    except DoesNotFit:
        return
    needs = Needs(arch, asked)
    assert size.num_bytes == size.num_blocks * needs.block
    assert needs.weights + needs.activations + size.num_bytes <= available


@examples(200)
@given(cases())
def test_the_cache_takes_all_it_may_and_no_more_than_can_ever_be_used(case):
    name, asked, available = case
    arch = ALL[name]
    asked = replace(asked, kv_cache_memory_bytes=None)
    try:
        size = sized(arch, asked, available)
    except DoesNotFit:
        return
    needs = Needs(arch, asked)
    budget = int(available * asked.gpu_memory_utilization) - needs.weights - needs.activations
    assert size.num_blocks == min(budget // needs.block, asked.max_num_seqs * needs.blocks_per_request)
    assert size.blocks_per_request == needs.blocks_per_request
    assert size.max_model_len == asked.max_model_len


@pytest.mark.parametrize("name", ALL)
def test_exactly_enough_for_one_request_is_enough_and_one_byte_less_is_not(name):
    asked = config(gpu_memory_utilization=1.0)
    needed = Needs(ALL[name], asked).total
    assert sized(ALL[name], asked, needed).num_requests == 1
    with pytest.raises(DoesNotFit):
        sized(ALL[name], asked, needed - 1)


def test_a_given_size_of_the_cache_is_what_is_taken():
    needs = Needs(FULL, config())
    size = sized(FULL, config(kv_cache_memory_bytes=2 * needs.kv + needs.block - 1), ENOUGH)
    assert size.num_bytes == 2 * needs.kv


def test_a_given_size_too_small_for_one_request_is_refused_with_the_size_it_takes():
    needs = Needs(FULL, config())
    with pytest.raises(DoesNotFit) as caught:
        sized(FULL, config(kv_cache_memory_bytes=needs.kv - 1), ENOUGH)
    assert remedy(caught.value) == {"kv_cache_memory_bytes": str(needs.kv)}


def test_a_given_size_larger_than_the_memory_is_refused():
    asked = config(kv_cache_memory_bytes=2**50, max_num_seqs=60)
    with pytest.raises(DoesNotFit):
        sized(FULL, asked, 2 * Needs(FULL, asked).total)


def test_the_share_of_memory_it_names_is_enough_for_any_need():
    asked = config(gpu_memory_utilization=0.001, max_model_len=100)
    needed = Needs(FULL, asked).total
    for percent in range(1, 101):
        available = needed * 100 // percent
        with pytest.raises(DoesNotFit) as caught:
            sized(FULL, asked, available)
        assert sized(FULL, applied(asked, remedy(caught.value)), available).num_requests >= 1


@pytest.mark.parametrize("percent", [7, 14, 28, 29, 55, 56, 57, 58])
def test_a_share_that_is_exact_in_decimals_is_enough_though_not_in_binary(percent):
    asked = config(gpu_memory_utilization=0.001)
    # A longer vocabulary changes the need until it is a multiple of the percentage.
    for vocabulary in range(VOCABULARY, VOCABULARY + 200):
        arch = replace(FULL, vocab_size=vocabulary)
        needed = Needs(arch, asked).total
        if needed % percent == 0:
            available = needed * 100 // percent
            with pytest.raises(DoesNotFit) as caught:
                sized(arch, asked, available)
            sized(arch, applied(asked, remedy(caught.value)), available)


def test_the_message_has_a_table_of_what_is_needed_and_what_there_is():
    asked = config(max_model_len=4096)
    needs = Needs(MIXED, asked)
    available = needs.weights + needs.activations + needs.kv // 2
    with pytest.raises(DoesNotFit) as caught:
        sized(MIXED, asked, available)
    lines = str(caught.value).splitlines()
    table = {}
    for line in lines[1:-1]:
        name, _, value = line.strip().rpartition("  ")
        table[name.strip()] = value.strip()
    assert table["weights"] == format_bytes(needs.weights)
    assert table["activations"] == format_bytes(needs.activations)
    assert table["KV cache of one request of 4096 tokens"] == format_bytes(needs.kv)
    assert table["needed"] == format_bytes(needs.total)
    assert table["available"] == format_bytes(available)
    assert table["usable at --gpu-memory-utilization 0.5"] == format_bytes(available // 2)
    assert len({len(line) for line in lines[1:-1]}) == 1, "the numbers stand below one another"


def test_a_context_too_long_is_answered_with_the_longest_that_fits():
    asked = config(max_model_len=4096, gpu_memory_utilization=1.0)
    needs = Needs(FULL, asked)
    with pytest.raises(DoesNotFit) as caught:
        sized(FULL, asked, needs.weights + needs.activations + needs.kv // 2)
    assert remedy(caught.value)["max_model_len"] == "2048"


def test_a_block_that_no_request_can_fill_is_answered_with_a_smaller_one():
    with pytest.raises(DoesNotFit, match=r"Use --block-size 16\.$"):
        sized(FULL, config(block_size=10**9), 2**30)


def test_weights_larger_than_the_memory_ask_for_a_smaller_model():
    needs = Needs(FULL, config())
    with pytest.raises(DoesNotFit, match="smaller model"):
        sized(FULL, config(), needs.weights // 2)


def test_no_memory_at_all_is_reported_like_too_little():
    with pytest.raises(DoesNotFit):
        sized(FULL, config(), 0)


def test_smaller_steps_are_suggested_to_a_single_sequence_too():
    asked = config(max_num_seqs=1, max_num_batched_tokens=4096, max_model_len=64, gpu_memory_utilization=1.0)
    needs = Needs(FULL, asked)
    available = needs.weights + needs.kv + needs.activations // 4
    with pytest.raises(DoesNotFit) as caught:
        sized(FULL, asked, available)
    sized(FULL, applied(asked, remedy(caught.value)), available)


def test_smaller_steps_are_suggested_beside_a_given_size_of_the_cache_too():
    asked = config(max_num_batched_tokens=4096, max_model_len=64)
    needs = Needs(FULL, asked)
    asked = replace(asked, kv_cache_memory_bytes=needs.kv)
    available = needs.weights + needs.kv + needs.activations // 4
    with pytest.raises(DoesNotFit) as caught:
        sized(FULL, asked, available)
    sized(FULL, applied(asked, remedy(caught.value)), available)


def test_a_smaller_model_is_not_asked_for_where_the_weights_fit():
    asked = config(block_size=64, max_model_len=64, gpu_memory_utilization=1.0)
    needs = Needs(FULL, asked)
    with pytest.raises(DoesNotFit) as caught:
        sized(FULL, asked, needs.weights + needs.activations + needs.block // 2)
    assert "weights alone" not in str(caught.value)


def test_smaller_steps_are_suggested_only_in_numbers_that_go_together():
    """Every sequence needs a token in a step: fewer tokens than sequences is refused when settings are read."""
    asked = config(max_num_batched_tokens=16, max_num_seqs=2, max_model_len=64, gpu_memory_utilization=1.0)
    needs = Needs(FULL, asked)
    with pytest.raises(DoesNotFit) as caught:
        sized(FULL, asked, needs.weights + needs.activations // 2)
    flags = remedy(caught.value)
    if flags:
        applied_settings = applied(asked, flags)
        resolve(applied_settings, FACTS)
        assert applied_settings.max_num_seqs <= asked.max_num_seqs


INT8 = MemoryOption(setting="--quantization int8", bytes_per_weight=1.0)
INT4 = MemoryOption(setting="--quantization int4", bytes_per_weight=0.5)
INT8_KV = MemoryOption(setting="--kv-cache-dtype int8", bytes_per_kv_value=1.0)
NO_DRAFTER = MemoryOption(setting="--speculative-config off", drops_drafter=True, is_lossy=False)


def advice(settings, available, *options, **more):
    memory = MemoryBudget(FULL, kv_layout(FULL), available, BYTES_PER_VALUE, options=options, **more)
    resolved = resolve(settings, FACTS)
    assert memory.fit(resolved) is None
    return memory.remedy(resolved)


def test_smaller_formats_are_offered_with_their_effect_where_they_suffice():
    asked = config(gpu_memory_utilization=1.0)
    needs = Needs(FULL, asked)
    available = needs.total - needs.weights // 2
    text = advice(asked, available, INT8_KV, INT8, INT4)
    assert text.startswith("Use --max-model-len"), "what is lossless comes first"
    before, after = format_bytes(needs.weights), format_bytes(needs.weights // 4)
    assert f"Or use --quantization int8 (lossy): weights of {after} instead of {before}." in text
    assert "int4" not in text, "int8 suffices and is less lossy"
    assert ("--kv-cache-dtype" in text) == (needs.kv - needs.kv // 4 >= needs.weights // 2)


def test_a_format_that_does_not_suffice_alone_is_offered_with_what_does():
    asked = config(gpu_memory_utilization=1.0)
    available = Needs(FULL, asked).weights // 2
    text = advice(asked, available, INT8_KV, INT8)
    assert text.startswith("Use --quantization int8 (lossy) --")
    flags = remedy(text.replace("(lossy) ", ""))
    smaller = MemoryBudget(FULL, kv_layout(FULL), available, BYTES_PER_VALUE, bytes_per_weight=1.0)
    assert smaller.fit(resolve(applied(asked, flags), FACTS)) is not None


def test_a_drafter_is_left_out_where_that_makes_the_model_fit():
    asked = config(gpu_memory_utilization=1.0)
    drafter = DrafterMemory(weights=1 << 20, per_token=100)
    text = advice(asked, Needs(FULL, asked).total, NO_DRAFTER, drafter=drafter)
    assert "Or use --speculative-config off: weights of " in text and "lossy" not in text


def line(num_blocks, blocks_per_request, max_model_len):
    return str(CacheSize(num_blocks, 0, max_model_len, blocks_per_request))


def test_the_line_that_start_up_prints():
    assert line(250_000, 256, 4096) == "KV cache: 4,000,000 tokens, 977 requests of 4,096 tokens at once"
    assert line(640, 256, 4096) == "KV cache: 10,240 tokens, 2.5 requests of 4,096 tokens at once"
    assert line(256, 256, 4096) == "KV cache: 4,096 tokens, 1.0 requests of 4,096 tokens at once"


@given(st.integers(1, 2000), st.integers(1, 40))
def test_a_cache_without_windows_holds_as_many_tokens_as_its_blocks_have_slots(num_blocks, blocks_per_request):
    num_blocks = max(num_blocks, blocks_per_request)
    size = CacheSize(num_blocks, 0, blocks_per_request * 16, blocks_per_request)
    assert size.num_tokens == num_blocks * 16


@pytest.mark.parametrize("max_model_len", [100, 512, 4096])
def test_a_window_makes_long_contexts_cheaper_but_never_dearer(max_model_len):
    asked = config(max_model_len=max_model_len, max_num_batched_tokens=16)
    windowed = Needs(WINDOWED, asked).blocks_per_request
    assert windowed <= -(-max_model_len // 16)
    if max_model_len > 100:
        assert windowed == -(-(20 - 1 + 16) // 16) + 1


def test_activations_grow_with_the_step_and_the_vocabulary():
    def of(arch=FULL, **changes):
        return MemoryBudget(arch, kv_layout(arch), 0, BYTES_PER_VALUE).activations(resolve(config(**changes), FACTS))

    large = replace(FULL, vocab_size=50_000)
    assert of(max_num_batched_tokens=128) > of(max_num_batched_tokens=64)
    assert of(large) - of() >= 4 * (50_000 - VOCABULARY) * 4
    steps = {"max_num_batched_tokens": 512}
    assert of(large, max_num_seqs=512, **steps) - of(large, max_num_seqs=256, **steps) >= 256 * 50_000 * 4


def test_more_sequences_than_are_drawn_at_once_cost_their_logits_and_no_more():
    """A small model with a large vocabulary must start with default settings on a small machine."""
    arch = replace(FULL, vocab_size=150_000)
    memory = MemoryBudget(arch, kv_layout(arch), 0, BYTES_PER_VALUE)
    few, many = (
        memory.activations(resolve(config(max_num_seqs=n, max_num_batched_tokens=256), FACTS)) for n in (32, 256)
    )
    assert many - few <= 3 * (256 - 32) * 150_000 * 4
    assert many < 2**29
