"""Test-time training: a layer's weights take gradient steps on the input, and training differentiates through them.

For each sequence, an inner loop fits attention weights to a denoising loss on that sequence; the outer loss, on the
adapted weights, teaches the starting point and the inner learning rate.
"""

from __future__ import annotations

import torch
from common import Attention, SelfAttention, attention_on_a_server, compare, plain_attention
from torch import Tensor, nn
from torch.func import functional_call

WIDTH, INNER_STEPS = 16, 2


class TestTimeTrained(nn.Module):
    """A self-attention layer that fits itself to each sequence before it answers."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.layer = SelfAttention(WIDTH, 2, attention)
        self.log_rate = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[1, N, width] to the same by the adapted layer, and the inner losses."""
        weights = dict(self.layer.named_parameters())
        losses = []
        for _ in range(INNER_STEPS):
            inner = ((functional_call(self.layer, weights, (x + noise,)) - x) ** 2).mean()
            gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            rate = self.log_rate.exp()
            weights = {name: w - rate * g for (name, w), g in zip(weights.items(), gradients, strict=True)}
            losses.append(inner)
        return functional_call(self.layer, weights, (x,)), losses


def model_on(attention: Attention) -> TestTimeTrained:
    """The same layer each time."""
    torch.manual_seed(0)
    return TestTimeTrained(attention).double()


def outer_loss(model: TestTimeTrained, x: Tensor, noise: Tensor) -> tuple[Tensor, list[Tensor]]:
    """How well the adapted layer predicts each next row."""
    output, losses = model(x, noise)
    return ((output[:, :-1] - x[:, 1:]) ** 2).mean(), losses


def main() -> None:
    """Trains the starting point, and prints inner and outer losses."""
    torch.manual_seed(1)

    def sequence() -> tuple[Tensor, Tensor]:
        steps = torch.randn(1, 24, WIDTH, dtype=torch.float64)
        return steps.cumsum(1) / 4, 0.1 * torch.randn(1, 24, WIDTH, dtype=torch.float64)

    with attention_on_a_server() as attention:
        model, plain = model_on(attention), model_on(plain_attention)
        first = sequence()
        got = torch.autograd.grad(outer_loss(model, *first)[0], list(model.parameters()))
        expected = torch.autograd.grad(outer_loss(plain, *first)[0], list(plain.parameters()))
        compare("gradient through the inner loop", got, expected)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for step in range(20):
            loss, inner = outer_loss(model, *sequence())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 5 == 0 or step == 19:
                fits = " -> ".join(f"{value.item():.3f}" for value in inner)
                print(f"step {step:2d}: inner {fits}, outer {loss.item():.4f}, rate {model.log_rate.exp().item():.3f}")


if __name__ == "__main__":
    main()
