"""A decoder-only transformer, as an Arch describes it.

`model(tokens, positions, attend)`: what a token may attend to is the caller's business. `attend(layer, q, k, v)` is
passed in, so the same decoder serves paged inference, plain training and calibration.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from archerfish.arch.arch import Arch, AttentionSpec, ExpertsSpec, LayerSpec, MlpSpec
from archerfish.arch.rope import RopeSpec
from archerfish.models.layers import Embedding, Linear, Norm
from archerfish.ops.signatures import AttendFunction, Ops

TapFunction = Callable[[int, Tensor], None]
"""Called with each layer's number and input [T, hidden], and last with the number of layers and the last one's
output."""

Angles = Tensor
"""Cosines and then sines of a step's positions, [T, R]."""


class Decoder(nn.Module):
    def __init__(self, arch: Arch, ops: Ops, max_model_len: int) -> None:
        super().__init__()
        self.arch = arch
        self.add, self.scale, self.softcap = ops.add, ops.scale, ops.softcap
        self.embedding = Embedding(arch.vocab_size, arch.hidden_size, ops)
        # Rounded to the working dtype, as the models were trained.
        multiplier = torch.tensor(arch.embedding_multiplier, dtype=self.embedding.weight.dtype, device="cpu")
        self.embedding_multiplier = float(multiplier)
        self.positions = Embedding(arch.max_positions, arch.hidden_size, ops) if arch.learned_positions else None
        self.rotations = Rotations(arch, max_model_len, ops)
        self.layers = nn.ModuleList(Layer(arch, index, ops) for index in range(len(arch.layers)))
        self.norm = Norm(arch.norm, arch.hidden_size, ops)
        self.head = Linear(arch.hidden_size, arch.vocab_size, arch.head_bias, ops)
        if arch.tie_embeddings:
            self.head.weight = self.embedding.weight

    def forward(
        self, tokens: Tensor, positions: Tensor, attend: AttendFunction, tap: TapFunction = lambda layer, x: None
    ) -> Tensor:
        """Compute [T], [T] -> hidden states [T, hidden], normalized and ready for `logits`."""
        x = self.embedded(tokens, positions)
        angles = self.rotations(positions)
        for number, layer in enumerate(self.layers):
            tap(number, x)
            x = layer(x, angles, attend)
        tap(len(self.layers), x)
        out: Tensor = self.norm(x)
        return out

    @property
    def vocabulary(self) -> tuple[nn.Module, ...]:
        """Modules with a row for each token."""
        return (self.embedding, self.head)

    def embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embed [T], [T] -> [T, hidden], the input of the first layer."""
        x: Tensor = self.embedding(tokens)
        if self.embedding_multiplier != 1.0:
            x = self.scale(x, self.embedding_multiplier)
        if self.positions is not None:
            x = self.add(x, self.positions(positions), 1.0)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute [rows, hidden] -> [rows, vocabulary], in float32."""
        return self.scored(self.head(hidden).float())

    def scored(self, logits: Tensor) -> Tensor:
        """Scale and cap the output of the head, in float32, as the model defines it."""
        if self.arch.logit_multiplier != 1.0:
            logits = self.scale(logits, self.arch.logit_multiplier)
        if self.arch.logit_softcap is not None:
            logits = self.softcap(logits, self.arch.logit_softcap)
        return logits


class Layer(nn.Module):
    def __init__(self, arch: Arch, index: int, ops: Ops) -> None:
        super().__init__()
        spec = arch.layers[index]
        self.spec = spec
        self.add = ops.add
        self.residual_multiplier = arch.residual_multiplier

        def norm(wanted: bool) -> nn.Module:
            return Norm(arch.norm, arch.hidden_size, ops) if wanted else nn.Identity()

        self.attention_norm = norm(spec.norm_inputs)
        self.attention = Attention(arch, index, ops)
        self.attention_out_norm = norm(spec.norm_outputs)
        self.mlp_norm = norm(spec.norm_inputs and not spec.shared_input_norm)
        self.mlp = feed_forward(arch, spec, ops)
        self.mlp_out_norm = norm(spec.norm_outputs)

    def forward(self, x: Tensor, angles: dict[RopeSpec, Angles], attend: AttendFunction) -> Tensor:
        normed = self.attention_norm(x)
        attended = self.attention_out_norm(self.attention(normed, angles, attend))
        if self.spec.parallel:
            fed = self.mlp(normed if self.spec.shared_input_norm else self.mlp_norm(x))
            return self._added(self._added(x, attended), self.mlp_out_norm(fed))
        x = self._added(x, attended)
        return self._added(x, self.mlp_out_norm(self.mlp(self.mlp_norm(x))))

    def _added(self, x: Tensor, y: Tensor) -> Tensor:
        return self.add(x, y, self.residual_multiplier)


class Attention(nn.Module):
    def __init__(self, arch: Arch, index: int, ops: Ops) -> None:
        super().__init__()
        spec = arch.layers[index].attention
        self.spec = spec
        self.index = index
        self.rotate = ops.rotate
        self.qkv = Linear(arch.hidden_size, spec.qkv_width, spec.qkv_bias, ops)
        self.output = Linear(spec.q_width, arch.hidden_size, spec.output_bias, ops)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if spec.qk_norm is not None:
            self.q_norm = Norm(arch.norm, spec.head_dim if spec.qk_norm == "head" else spec.q_width, ops)
            if spec.kv_source is None:
                self.k_norm = Norm(arch.norm, spec.head_dim if spec.qk_norm == "head" else spec.kv_width, ops)

    def forward(self, x: Tensor, angles: dict[RopeSpec, Angles], attend: AttendFunction) -> Tensor:
        return self.attended(self.qkv(x), angles, attend)

    def attended(self, qkv: Tensor, angles: dict[RopeSpec, Angles], attend: AttendFunction) -> Tensor:
        """Attend with queries, keys and values in one tensor -> [T, hidden]."""
        spec = self.spec
        q = self._positioned(qkv[:, : spec.q_width], self.q_norm, spec.num_heads, angles)
        k = v = None
        if spec.kv_source is None:
            k = self._positioned(qkv[:, spec.q_width : -spec.kv_width], self.k_norm, spec.num_kv_heads, angles)
            v = qkv[:, -spec.kv_width :].view(-1, spec.num_kv_heads, spec.head_dim)  # [T, G, D]
        out: Tensor = self.output(attend(self.index, q, k, v).flatten(1))
        return out

    def _positioned(self, x: Tensor, norm: nn.Module, num_heads: int, angles: dict[RopeSpec, Angles]) -> Tensor:
        """Normalize and rotate [T, width] -> [T, heads, D]."""
        if self.spec.qk_norm == "width":
            x = norm(x)
        x = x.view(-1, num_heads, self.spec.head_dim)
        if self.spec.qk_norm == "head":
            x = norm(x)
        return x if self.spec.rope is None else self.rotate(x, angles[self.spec.rope])


class Mlp(nn.Module):
    def __init__(self, hidden_size: int, spec: MlpSpec, ops: Ops) -> None:
        super().__init__()
        self.spec = spec
        self.activate = ops.activate
        self.up = Linear(hidden_size, spec.size * (2 if spec.gated else 1), spec.bias, ops)
        """Gate, then up, where the layer is gated."""
        self.down = Linear(spec.size, hidden_size, spec.bias, ops)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.activate(self.up(x), self.spec.activation, self.spec.gated))
        return out


class Experts(nn.Module):
    def __init__(self, hidden_size: int, spec: ExpertsSpec, ops: Ops) -> None:
        super().__init__()
        self.spec = spec
        self.route, self.experts = ops.route, ops.experts
        self.router = Linear(hidden_size, spec.num_experts, False, ops)
        self.up = nn.Parameter(torch.empty(spec.num_experts, 2 * spec.size, hidden_size))
        self.down = nn.Parameter(torch.empty(spec.num_experts, hidden_size, spec.size))

    def forward(self, x: Tensor) -> Tensor:
        spec = self.spec
        chosen, weights = self.route(self.router(x), spec.num_experts_per_token, spec.normalize_weights)
        return self.experts(x, self.up, self.down, chosen, weights, spec.activation)


class Rotations(nn.Module):
    """Cosines and sines of every position, one table for each rotation that the layers use."""

    def __init__(self, arch: Arch, max_model_len: int, ops: Ops) -> None:
        super().__init__()
        self.embed = ops.embed
        self.specs = list(dict.fromkeys(_ropes(arch)))
        for index, spec in enumerate(self.specs):
            rotation = spec.rotation(max_model_len)
            # float32 positions and frequencies, as the models were trained: exact angles would differ at long range.
            frequencies = torch.tensor(rotation.frequencies, dtype=torch.float32, device="cpu")
            turns = torch.arange(max_model_len, dtype=torch.float32, device="cpu")[:, None] * frequencies
            table = torch.cat((turns.cos(), turns.sin()), dim=-1) * rotation.magnitude  # [positions, R]
            self.register_buffer(f"table{index}", table, persistent=False)

    def forward(self, positions: Tensor) -> dict[RopeSpec, Angles]:
        return {spec: self.embed(positions, getattr(self, f"table{index}")) for index, spec in enumerate(self.specs)}


def feed_forward(arch: Arch, spec: LayerSpec, ops: Ops) -> nn.Module:
    if isinstance(spec.feed_forward, ExpertsSpec):
        return Experts(arch.hidden_size, spec.feed_forward, ops)
    return Mlp(arch.hidden_size, spec.feed_forward, ops)


def _ropes(arch: Arch) -> list[RopeSpec]:
    specs: list[AttentionSpec] = [layer.attention for layer in arch.layers]
    return [spec.rope for spec in specs if spec.rope is not None]
