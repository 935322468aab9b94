"""A critic with attention, kept 1-Lipschitz by the gradient penalty of WGAN-GP: a gradient within the loss."""

from __future__ import annotations

import torch
from common import Attention, Transformer, attention_on_a_server, compare, plain_attention
from torch import Tensor, nn


def critic_on(attention: Attention) -> nn.Module:
    """The same small critic each time."""
    torch.manual_seed(0)
    return Transformer(2, 1, attention, layers=1).double()


def critic_loss(critic: nn.Module, real: Tensor, fake: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, mean norm of the gradient between real and fake)."""
    between = (mix * real + (1 - mix) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between).mean(1).sum(), between, create_graph=True)
    norms = gradient.flatten(1).norm(dim=1)
    return critic(fake).mean() - critic(real).mean() + 10 * ((norms - 1) ** 2).mean(), norms.mean()


def main() -> None:
    """Trains the critic to tell circles from noise, and prints how its slope settles at 1."""
    torch.manual_seed(1)
    angle = torch.linspace(0, 6, 24, dtype=torch.float64) + torch.rand(8, 1, dtype=torch.float64)
    real = torch.stack([angle.cos(), angle.sin()], -1)

    def batch() -> tuple[Tensor, Tensor, Tensor]:
        return real, torch.randn_like(real), torch.rand(8, 1, 1, dtype=torch.float64)

    with attention_on_a_server() as attention:
        critic, plain = critic_on(attention), critic_on(plain_attention)
        first = batch()
        got = torch.autograd.grad(critic_loss(critic, *first)[0], list(critic.parameters()), allow_unused=True)
        expected = torch.autograd.grad(critic_loss(plain, *first)[0], list(plain.parameters()), allow_unused=True)
        compare(
            "gradient through the penalty",
            [g for g in got if g is not None],
            [g for g in expected if g is not None],
        )
        optimizer = torch.optim.Adam(critic.parameters(), lr=0.005)
        for step in range(30):
            loss, slope = critic_loss(critic, *batch())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0 or step == 29:
                print(f"step {step:2d}: loss {loss.item():+.3f}, slope {slope.item():.3f}")


if __name__ == "__main__":
    main()
