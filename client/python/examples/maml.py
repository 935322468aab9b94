"""MAML with its second order: learn weights from which one gradient step learns a task.

The first-order variant drops the derivative of that step, for want of a twice differentiable attention; here it is
exact.
"""

from __future__ import annotations

import torch
from common import Attention, Transformer, attention_on_a_server, compare, plain_attention
from torch import Tensor, nn
from torch.func import functional_call


def model_on(attention: Attention) -> nn.Module:
    """The same small transformer each time."""
    torch.manual_seed(0)
    return Transformer(1, 1, attention, width=16, heads=2, layers=1).double()


def tasks(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sine waves of random amplitude and phase, sampled in order: [tasks, N, 1] points and values."""
    points = torch.rand(count, 20, 1, dtype=torch.float64, generator=generator).sort(1).values * 6 - 3
    amplitude, phase = torch.rand(2, count, 1, 1, dtype=torch.float64, generator=generator)
    return points, (0.5 + 2 * amplitude) * torch.sin(points + 3 * phase)


def meta_loss(model: nn.Module, x: Tensor, y: Tensor, rate: float = 0.05) -> Tensor:
    """Loss on the second half of each task after one step on its first half."""
    weights = dict(model.named_parameters())
    losses = []
    for points, values in zip(x, y, strict=True):
        inner = ((functional_call(model, weights, (points[None, :10],)) - values[None, :10]) ** 2).mean()
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        adapted = {name: w - rate * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
        losses.append(((functional_call(model, adapted, (points[None, 10:],)) - values[None, 10:]) ** 2).mean())
    return torch.stack(losses).mean()


def main() -> None:
    """Trains a little, and prints the loss after adaptation."""
    generator = torch.Generator().manual_seed(1)
    with attention_on_a_server() as attention:
        model, plain = model_on(attention), model_on(plain_attention)
        x, y = tasks(4, generator)
        got = torch.autograd.grad(meta_loss(model, x, y), list(model.parameters()))
        compare("meta-gradient", got, torch.autograd.grad(meta_loss(plain, x, y), list(plain.parameters())))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(20):
            loss = meta_loss(model, *tasks(4, generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0 or step == 19:
                print(f"step {step:2d}: loss after adaptation {loss.item():.4f}")


if __name__ == "__main__":
    main()
