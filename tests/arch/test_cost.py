"""Parameters, operations and bytes equal what one gets by hand, and what the makers of known models publish."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from archerfish.arch import Arch, ExpertsSpec, LayerSpec, MlpSpec, NormSpec
from archerfish.arch.cost import (
    attention_flops,
    flops,
    flops_per_token,
    keys_read,
    keys_seen,
    kv_bytes,
    kv_bytes_per_token,
    kv_bytes_read,
    logits_flops,
    matrix_flops_per_token,
    num_active_parameters,
    num_parameters,
    step_cost,
    weight_bytes,
    weight_bytes_read,
)
from tests.arch import shapes
from tests.arch.shapes import arch, attention, uniform
from tests.lanes import examples

# -- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("LLAMA_2_7B", 6_738_415_616),
        ("LLAMA_2_13B", 13_015_864_320),
        ("LLAMA_2_70B", 68_976_648_192),
        ("LLAMA_3_8B", 8_030_261_248),
        ("MISTRAL_7B", 7_241_732_096),
        ("MIXTRAL_8X7B", 46_702_792_704),
        ("QWEN_25_05B", 494_032_768),
        ("QWEN_3_06B", 596_049_920),
        ("OLMO_2_7B", 7_298_617_344),
        ("GPT_2", 124_439_808),
        ("FALCON_7B", 6_921_720_704),
        ("PHI_2", 2_779_683_840),
        ("GEMMA_2_2B", 2_614_341_888),
        ("GEMMA_3_1B", 999_885_952),
    ],
)
def test_parameters_are_those_of_the_published_checkpoint(model: str, published: int) -> None:
    assert num_parameters(getattr(shapes, model)) == published


def test_parameters_of_a_small_model_by_hand() -> None:
    layer = LayerSpec(attention=attention(4, 2, 8), feed_forward=MlpSpec(size=40))
    model = uniform(100, 32, 3, layer)
    projections = 32 * (4 * 8 + 2 * 8 + 2 * 8) + 4 * 8 * 32
    assert num_parameters(model) == 2 * 100 * 32 + 3 * (projections + 3 * 32 * 40 + 2 * 32) + 32
    assert weight_bytes(model, 2) == 2 * num_parameters(model)
    assert weight_bytes(model, 0.5) == num_parameters(model) / 2


def test_a_layer_that_reads_anothers_keys_has_no_projections_for_its_own() -> None:
    own = LayerSpec(attention=attention(4, 2, 8, qkv_bias=True, qk_norm="head"), feed_forward=MlpSpec(size=40))
    shared = LayerSpec(
        attention=attention(4, 2, 8, qkv_bias=True, qk_norm="head", kv_source=0), feed_forward=MlpSpec(size=40)
    )
    both, twice = arch(100, 32, [own, shared]), arch(100, 32, [own, own])
    keys_and_values = 2 * 2 * 8
    # Weights and biases of keys and values, and the norm of the keys.
    assert num_parameters(twice) - num_parameters(both) == (32 + 1) * keys_and_values + 8


def test_biases_and_norms_by_hand() -> None:
    plain = LayerSpec(attention=attention(4, 2, 8), feed_forward=MlpSpec(size=40))
    layer = LayerSpec(
        attention=attention(4, 2, 8, qkv_bias=True, output_bias=True, qk_norm="width"),
        feed_forward=MlpSpec(size=40, bias=True),
        norm_outputs=True,
    )
    extra = num_parameters(uniform(100, 32, 1, layer)) - num_parameters(uniform(100, 32, 1, plain))
    assert extra == (32 + 16 + 16) + 32 + (32 + 16) + (40 + 40 + 32) + 2 * 32


def test_a_layer_norm_has_a_bias_too() -> None:
    layer = LayerSpec(attention=attention(4, 2, 8), feed_forward=MlpSpec(size=40))
    rms, mean = uniform(100, 32, 2, layer), uniform(100, 32, 2, layer, norm=NormSpec(kind="layer"))
    assert num_parameters(mean) - num_parameters(rms) == (2 * 2 + 1) * 32


def test_only_chosen_experts_and_the_head_take_part_in_a_token() -> None:
    # Published as 12.9 billion active, counting the embedding rows that take no part in a product.
    active = num_active_parameters(shapes.MIXTRAL_8X7B)
    assert round((active + 32000 * 4096) / 1e9, 1) == 12.9
    experts = ExpertsSpec(num_experts=6, num_experts_per_token=2, size=10)
    model = uniform(50, 32, 1, LayerSpec(attention=attention(4, 4, 8), feed_forward=experts))
    assert num_active_parameters(model) == 4 * 32 * 32 + 2 * 3 * 32 * 10 + 32 * 6 + 50 * 32


def test_a_tied_head_is_stored_once_but_multiplied_all_the_same() -> None:
    layer = LayerSpec(attention=attention(4, 2, 8), feed_forward=MlpSpec(size=40))
    tied, untied = uniform(100, 32, 1, layer, tie_embeddings=True), uniform(100, 32, 1, layer)
    assert num_parameters(untied) - num_parameters(tied) == 100 * 32
    assert num_active_parameters(untied) == num_active_parameters(tied)


# -- keys and values --------------------------------------------------------------------------------------------------


def test_a_batch_of_32_contexts_of_2048_of_a_13b_model_takes_54_gigabytes() -> None:
    total = 32 * kv_bytes(shapes.LLAMA_2_13B, 2048, 2)
    assert total == 2 * 32 * 2048 * 40 * 5120 * 2
    assert round(total / 1e9, 1) == 53.7


def test_one_context_of_4096_of_a_7b_model_takes_two_gigabytes() -> None:
    total = kv_bytes(shapes.LLAMA_2_7B, 4096, 2)
    assert total == 2 * 4096 * 32 * 4096 * 2
    assert round(total / 1e9, 2) == 2.15


def test_grouped_heads_store_as_much_as_there_are_kv_heads() -> None:
    assert kv_bytes_per_token(shapes.LLAMA_2_70B, 2) == 2 * 80 * 8 * 128 * 2
    assert kv_bytes_per_token(shapes.LLAMA_3_8B, 2) * 4 == kv_bytes_per_token(shapes.LLAMA_2_7B, 2)
    assert kv_bytes_per_token(shapes.FALCON_7B, 2) == 2 * 32 * 64 * 2


def test_windows_bound_what_a_layer_stores() -> None:
    per_layer = 2 * 1 * 256 * 2
    assert kv_bytes(shapes.GEMMA_3_1B, 32768, 2) == per_layer * (4 * 32768 + 22 * 512)
    assert kv_bytes(shapes.GEMMA_3_1B, 512, 2) == per_layer * 26 * 512
    assert kv_bytes(shapes.GEMMA_3_1B, 513, 2) == per_layer * (4 * 513 + 22 * 512)
    assert kv_bytes(shapes.MISTRAL_7B, 100_000, 2) == kv_bytes(shapes.MISTRAL_7B, 4096, 2)


def test_layers_that_share_keys_and_values_store_none() -> None:
    layers = [
        LayerSpec(attention=attention(4, 2, 8, kv_source=source), feed_forward=MlpSpec(size=40))
        for source in (None, 0, None, 2, 2)
    ]
    model = arch(100, 32, layers)
    assert kv_bytes_per_token(model, 2) == 2 * 2 * (2 * 8) * 2
    assert kv_bytes(model, 10, 1) == 10 * kv_bytes_per_token(model, 1)


def test_fewer_bits_store_fewer_bytes() -> None:
    assert kv_bytes(shapes.LLAMA_3_8B, 1000, 0.5) == kv_bytes(shapes.LLAMA_3_8B, 1000, 2) / 4


# -- operations -------------------------------------------------------------------------------------------------------


def test_a_token_costs_two_operations_a_parameter_and_four_a_key_it_sees() -> None:
    model = shapes.LLAMA_2_7B
    matrices = 6_738_415_616 - 32000 * 4096 - 65 * 4096  # Neither embedding rows nor norms are multiplied.
    assert num_active_parameters(model) == matrices
    assert flops_per_token(model, 1000) == 2 * matrices + 4 * 1000 * 4096 * 32


def test_layers_with_a_window_see_no_further() -> None:
    model = shapes.GEMMA_3_1B
    far = flops_per_token(model, 10_000) - 2 * num_active_parameters(model)
    assert far == 4 * (4 * 256) * (4 * 10_000 + 22 * 512)


def test_queries_are_what_attention_costs_however_few_keys_there_are_to_store() -> None:
    grouped = uniform(100, 32, 2, LayerSpec(attention=attention(4, 1, 8), feed_forward=MlpSpec(size=40)))
    full = uniform(100, 32, 2, LayerSpec(attention=attention(4, 4, 8), feed_forward=MlpSpec(size=40)))

    def attending(model: Arch) -> float:
        return flops_per_token(model, 50) - flops_per_token(model, 0)

    assert attending(grouped) == attending(full)


@examples(60)
@given(
    model=st.sampled_from([shapes.LLAMA_3_8B, shapes.GEMMA_3_1B, shapes.MISTRAL_7B, shapes.MIXTRAL_8X7B]),
    start=st.integers(0, 9000),
    num_tokens=st.integers(0, 700),
)
def test_a_chunk_costs_what_its_tokens_cost_one_by_one(model: Arch, start: int, num_tokens: int) -> None:
    one_by_one = sum(flops_per_token(model, start + place + 1) for place in range(num_tokens))
    assert flops(model, start, num_tokens) == pytest.approx(one_by_one, rel=1e-12)


def test_chunks_cost_together_what_the_whole_costs() -> None:
    model = shapes.GEMMA_2_2B
    assert flops(model, 0, 8000) == flops(model, 0, 3000) + flops(model, 3000, 4999) + flops(model, 7999, 1)


def test_operations_are_those_of_matrices_attention_and_the_head() -> None:
    layer = LayerSpec(attention=attention(4, 2, 8), feed_forward=MlpSpec(size=40))
    model = uniform(100, 32, 3, layer)
    assert matrix_flops_per_token(model) == 2 * 3 * (32 * (4 + 2 + 2) * 8 + 4 * 8 * 32 + 3 * 32 * 40)
    assert logits_flops(model) == 2 * 100 * 32
    assert attention_flops(model, 4, 3) == 3 * 4 * (4 * 8) * (5 + 6 + 7)
    assert flops(model, 4, 3) == 3 * (matrix_flops_per_token(model) + logits_flops(model)) + attention_flops(
        model, 4, 3
    )


@examples(100)
@given(start=st.integers(0, 40), num_tokens=st.integers(0, 40), window=st.one_of(st.none(), st.integers(1, 30)))
def test_keys_are_those_that_each_token_sees(start: int, num_tokens: int, window: int | None) -> None:
    seen = [
        range(max(0, position + 1 - window) if window is not None else 0, position + 1)
        for position in range(start, start + num_tokens)
    ]
    assert keys_seen(start, num_tokens, window) == sum(map(len, seen))
    assert keys_read(start, num_tokens, window) == len(set().union(*seen))


# -- what a step reads ------------------------------------------------------------------------------------------------


def test_a_decoding_token_reads_the_keys_and_values_it_sees() -> None:
    assert kv_bytes_read(shapes.LLAMA_2_7B, 4095, 1, 2) == kv_bytes(shapes.LLAMA_2_7B, 4096, 2)
    assert kv_bytes_read(shapes.GEMMA_3_1B, 32767, 1, 2) == kv_bytes(shapes.GEMMA_3_1B, 32768, 2)


def test_a_prompt_reads_each_key_once() -> None:
    assert kv_bytes_read(shapes.LLAMA_3_8B, 1000, 500, 2) == 1500 * kv_bytes_per_token(shapes.LLAMA_3_8B, 2)
    per_layer = 2 * 1 * 256 * 2
    assert kv_bytes_read(shapes.GEMMA_3_1B, 1000, 500, 2) == per_layer * (4 * 1500 + 22 * (511 + 500))


def test_shared_keys_and_values_are_stored_once_and_read_by_every_layer() -> None:
    layers = [
        LayerSpec(attention=attention(4, 2, 8, kv_source=source), feed_forward=MlpSpec(size=40))
        for source in (None, 0, 0)
    ]
    model = arch(100, 32, layers)
    assert kv_bytes_read(model, 9, 1, 2) == 3 * kv_bytes(model, 10, 2)


def test_weights_are_read_once_however_many_tokens_there_are() -> None:
    model = shapes.LLAMA_3_8B
    every = weight_bytes(model, 2) - 2 * 128256 * 4096  # Of the embedding table only rows are read.
    assert weight_bytes_read(model, 1, 1, 2) == weight_bytes_read(model, 500, 20, 2) == every
    assert weight_bytes_read(model, 500, 0, 2) == every - 2 * 128256 * 4096
    assert weight_bytes_read(model, 0, 0, 2) == 0


def test_a_tied_head_is_read_like_any_other() -> None:
    layer = LayerSpec(attention=attention(4, 2, 8), feed_forward=MlpSpec(size=40))
    tied, untied = uniform(100, 32, 1, layer, tie_embeddings=True), uniform(100, 32, 1, layer)
    assert weight_bytes_read(tied, 1, 1, 2) == weight_bytes_read(untied, 1, 1, 2) == weight_bytes(tied, 2)


def test_learned_positions_and_biases_of_the_head() -> None:
    # Of the table of positions, too, only rows are read.
    assert weight_bytes_read(shapes.GPT_2, 1, 1, 1) == num_parameters(shapes.GPT_2) - 1024 * 768
    assert weight_bytes_read(shapes.PHI_2, 1, 1, 1) == num_parameters(shapes.PHI_2) - 51200 * 2560


def test_one_token_reads_the_experts_it_chooses_and_many_read_nearly_all() -> None:
    model = shapes.MIXTRAL_8X7B
    embeddings, norms = 32000 * 4096, (2 * 32 + 1) * 4096
    assert weight_bytes_read(model, 1, 1, 1) == pytest.approx(num_active_parameters(model) + norms)
    assert weight_bytes_read(model, 1000, 1, 1) == pytest.approx(num_parameters(model) - embeddings)
    # Two tokens that each choose a quarter of the experts miss a share of (3/4)^2 together.
    experts = 32 * 8 * 3 * 4096 * 14336
    rest = num_parameters(model) - embeddings - experts
    assert weight_bytes_read(model, 2, 1, 1) == pytest.approx(rest + experts * (1 - 0.75**2))


def test_layers_that_reach_equally_far_are_taken_together() -> None:
    cost = step_cost(shapes.GEMMA_3_1B, 2, 2)
    assert {reach.window: reach.flops_per_key for reach in cost.reaches} == {
        512: 22 * 4 * 4 * 256,
        None: 4 * 4 * 4 * 256,
    }
    assert {reach.window: reach.bytes_per_key for reach in cost.reaches} == {512: 22 * 1024, None: 4 * 1024}
