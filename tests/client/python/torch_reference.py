"""Attention in plain PyTorch, differentiable as often as one likes; rows that see no key give 0."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    window: tuple[int, int] = (-1, -1),
    bottom_right: bool = False,
    scale: float | None = None,
) -> Tensor:
    """[..., H, N, D] with key heads repeated over their groups."""
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    n_q, n_k = q.shape[-2], k.shape[-2]
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    i = torch.arange(n_q)[:, None] + (n_k - n_q if bottom_right else 0)
    j = torch.arange(n_k)[None, :]
    visible = torch.ones(n_q, n_k, dtype=torch.bool)
    if window[0] >= 0:
        visible &= j >= i - window[0]
    if window[1] >= 0:
        visible &= j <= i + window[1]
    scores = (scale * (q @ k.transpose(-1, -2))).masked_fill(~visible, -torch.inf)
    # A row without a visible key: any finite scores, then no weight.
    scores = torch.where(visible.any(1)[:, None], scores, 0.0)
    return (torch.softmax(scores, -1) * visible) @ v


def relative_error(got: Tensor, expected: Tensor) -> float:
    """In the Frobenius norm; absolute where the expected is below 1."""
    got, expected = got.detach(), expected.detach()
    difference = torch.linalg.vector_norm(got.double() - expected.double())
    return float(difference / max(float(torch.linalg.vector_norm(expected.double())), 1.0))


class Block(nn.Module):
    """One pre-norm transformer layer whose attention function is the caller's."""

    def __init__(self, width: int, heads: int, attention: object) -> None:
        super().__init__()
        self.heads = heads
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, rows, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, rows, 3, self.heads, width // self.heads)
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        o = self.attention(q, k, v, is_causal=True)  # type: ignore[operator]
        x = x + self.out(o.transpose(1, 2).reshape(batch, rows, width))
        return x + self.down(torch.tanh(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A few such layers and a read-out; small, smooth, in whatever dtype."""

    def __init__(
        self, attention: object, *, width: int = 16, heads: int = 2, layers: int = 2, classes: int = 5
    ) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(layers))
        self.read_out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.read_out(x)
