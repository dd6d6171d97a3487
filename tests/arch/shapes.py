"""Shapes of published models, written out by hand."""

from collections.abc import Sequence
from typing import Any

from archerfish.arch import Arch, AttentionSpec, ExpertsSpec, LayerSpec, MlpSpec, NormSpec


def attention(num_heads: int, num_kv_heads: int, head_dim: int, **more: Any) -> AttentionSpec:
    return AttentionSpec(
        num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, scale=head_dim**-0.5, **more
    )


def arch(
    vocab_size: int,
    hidden_size: int,
    layers: Sequence[LayerSpec],
    *,
    norm: NormSpec | None = None,
    max_positions: int = 4096,
    **more: Any,
) -> Arch:
    return Arch(
        family="by hand",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=tuple(layers),
        norm=norm or NormSpec(),
        max_positions=max_positions,
        **more,
    )


def uniform(
    vocab_size: int, hidden_size: int, num_layers: int, layer: LayerSpec, norm: NormSpec | None = None, **more: Any
) -> Arch:
    return arch(vocab_size, hidden_size, [layer] * num_layers, norm=norm, **more)


LLAMA_2_7B = uniform(32000, 4096, 32, LayerSpec(attention=attention(32, 32, 128), feed_forward=MlpSpec(size=11008)))
LLAMA_2_13B = uniform(32000, 5120, 40, LayerSpec(attention=attention(40, 40, 128), feed_forward=MlpSpec(size=13824)))
LLAMA_2_70B = uniform(32000, 8192, 80, LayerSpec(attention=attention(64, 8, 128), feed_forward=MlpSpec(size=28672)))
LLAMA_3_8B = uniform(128256, 4096, 32, LayerSpec(attention=attention(32, 8, 128), feed_forward=MlpSpec(size=14336)))
MISTRAL_7B = uniform(
    32000, 4096, 32, LayerSpec(attention=attention(32, 8, 128, window=4096), feed_forward=MlpSpec(size=14336))
)
MIXTRAL_8X7B = uniform(
    32000,
    4096,
    32,
    LayerSpec(
        attention=attention(32, 8, 128),
        feed_forward=ExpertsSpec(num_experts=8, num_experts_per_token=2, size=14336),
    ),
)
QWEN_25_05B = uniform(
    151936,
    896,
    24,
    LayerSpec(attention=attention(14, 2, 64, qkv_bias=True), feed_forward=MlpSpec(size=4864)),
    tie_embeddings=True,
)
QWEN_3_06B = uniform(
    151936,
    1024,
    28,
    LayerSpec(attention=attention(16, 8, 128, qk_norm="head"), feed_forward=MlpSpec(size=3072)),
    tie_embeddings=True,
)
OLMO_2_7B = uniform(
    100352,
    4096,
    32,
    LayerSpec(
        attention=attention(32, 32, 128, qk_norm="width"),
        feed_forward=MlpSpec(size=11008),
        norm_inputs=False,
        norm_outputs=True,
    ),
)
GPT_2 = uniform(
    50257,
    768,
    12,
    LayerSpec(
        attention=attention(12, 12, 64, qkv_bias=True, output_bias=True),
        feed_forward=MlpSpec(size=3072, activation="gelu_tanh", gated=False, bias=True),
    ),
    norm=NormSpec(kind="layer"),
    max_positions=1024,
    learned_positions=True,
    tie_embeddings=True,
)
FALCON_7B = uniform(
    65024,
    4544,
    32,
    LayerSpec(
        attention=attention(71, 1, 64),
        feed_forward=MlpSpec(size=18176, activation="gelu", gated=False),
        parallel=True,
        shared_input_norm=True,
    ),
    norm=NormSpec(kind="layer"),
    tie_embeddings=True,
)
PHI_2 = uniform(
    51200,
    2560,
    32,
    LayerSpec(
        attention=attention(32, 32, 80, qkv_bias=True, output_bias=True),
        feed_forward=MlpSpec(size=10240, activation="gelu_tanh", gated=False, bias=True),
        parallel=True,
        shared_input_norm=True,
    ),
    norm=NormSpec(kind="layer"),
    head_bias=True,
)
GEMMA_2_2B = arch(
    256000,
    2304,
    [
        LayerSpec(
            attention=attention(8, 4, 256, window=None if index % 2 else 4096),
            feed_forward=MlpSpec(size=9216),
            norm_outputs=True,
        )
        for index in range(26)
    ],
    tie_embeddings=True,
    max_positions=8192,
)
GEMMA_3_1B = arch(
    262144,
    1152,
    [
        LayerSpec(
            attention=attention(4, 1, 256, window=512 if (index + 1) % 6 else None, qk_norm="head"),
            feed_forward=MlpSpec(size=6912),
            norm_outputs=True,
        )
        for index in range(26)
    ],
    tie_embeddings=True,
    max_positions=32768,
)
