"""Muon for the matrices of the layers, AdamW for embeddings and norms, one schedule for both."""

from collections import defaultdict

import torch
from torch import Tensor, nn

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NEWTON_SCHULZ_STEPS = 5


def orthogonalized(matrices: Tensor) -> Tensor:
    """Return each matrix of a stack replaced by the nearest one whose singular values are about 1."""
    a, b, c = _NEWTON_SCHULZ
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates; matrices of one shape are updated together."""

    def __init__(
        self, parameters: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                by_shape[tuple(parameter.shape)].append(parameter)
            for shape, parameters in by_shape.items():
                updates = torch.stack([self._momentum(parameter, group["momentum"]) for parameter in parameters])
                scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
                for parameter, update in zip(parameters, orthogonalized(updates), strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=scale)

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        assert parameter.grad is not None
        state = self.state[parameter]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        velocity: Tensor = state["velocity"]
        velocity.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(velocity, momentum)


class Optimizers:
    """Both optimizers, stepped together under one multiplier of their learning rates."""

    def __init__(self, model: nn.Module, matrix_lr: float, other_lr: float) -> None:
        matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name]
        others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embedding" in name]
        self._all: list[torch.optim.Optimizer] = [
            Muon(matrices, matrix_lr),
            torch.optim.AdamW(others, other_lr, betas=(0.9, 0.95), weight_decay=0.0, fused=others[0].is_cuda),
        ]
        self._peaks = [optimizer.param_groups[0]["lr"] for optimizer in self._all]

    def step(self, multiplier: float) -> None:
        for optimizer, peak in zip(self._all, self._peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * multiplier
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, object]]:
        return [optimizer.state_dict() for optimizer in self._all]

    def load(self, states: list[dict[str, object]]) -> None:
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)


def rise(done: float, warm_up: float = 0.03) -> float:
    """Return the multiplier of a main phase at a share of it: a short rise, then a plateau."""
    return max(done, 1e-4) / warm_up if done < warm_up else 1.0


def fall(done: float) -> float:
    """Return the multiplier of a last phase: a straight fall to a hundredth, after a moment for the momenta to form."""
    return min(rise(done, warm_up=0.01), max(0.01, 1 - done))


def rise_and_fall(done: float, decay: float = 0.4) -> float:
    """Return the multiplier of both in one phase: the fall takes the last part of it."""
    return min(rise(done), max(0.01, (1 - done) / decay))
