"""Small models of every kind of cache: full, windowed, mixed, shared; dense and with experts."""

from archerfish.arch import Arch, AttentionSpec, ExpertsSpec, LayerSpec, MlpSpec, NormSpec, RopeSpec

VOCABULARY = 61
MAX_POSITIONS = 4096


def _layer(window=None, kv_source=None, softcap=None, kv_heads=2, feed_forward=None, **changes):
    attention = AttentionSpec(
        num_heads=4,
        num_kv_heads=kv_heads,
        head_dim=8,
        scale=8**-0.5,
        rope=RopeSpec(theta=10_000.0, dim=8),
        window=window,
        softcap=softcap,
        kv_source=kv_source,
    )
    return LayerSpec(attention=attention, feed_forward=feed_forward or MlpSpec(size=48), **changes)


def _arch(*layers, **changes):
    return Arch(
        family="test",
        vocab_size=VOCABULARY,
        hidden_size=32,
        layers=layers,
        norm=NormSpec(),
        max_positions=MAX_POSITIONS,
        **changes,
    )


FULL = _arch(_layer(), _layer(), _layer())
MULTI_QUERY = _arch(_layer(kv_heads=1), _layer(kv_heads=1), tie_embeddings=True)
WINDOWED = _arch(_layer(window=20), _layer(window=20))
MIXED = _arch(_layer(window=9), _layer(window=9), _layer(window=9), _layer(), logit_softcap=15.0)
UNEVEN = _arch(_layer(window=33), _layer(softcap=10.0), _layer(window=33), _layer(window=5), _layer(window=33))
SHARED = _arch(_layer(), _layer(window=17), _layer(kv_source=0), _layer(window=17, kv_source=1))
EXPERTS = _arch(_layer(feed_forward=ExpertsSpec(num_experts=5, num_experts_per_token=2, size=24)), _layer())

ALL = {
    "full": FULL,
    "multi query": MULTI_QUERY,
    "windowed": WINDOWED,
    "mixed": MIXED,
    "uneven": UNEVEN,
    "shared": SHARED,
    "experts": EXPERTS,
}
