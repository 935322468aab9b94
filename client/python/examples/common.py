"""What the examples share: a server, plain attention to compare with, and a small transformer."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence

import flashbob
import torch
from flashbob.torch import scaled_dot_product_attention
from torch import Tensor, nn

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@contextlib.contextmanager
def attention_on_a_server() -> Iterator[Attention]:
    """Causal attention by the server of FLASHBOB_SERVER, or by one started on this machine."""
    with flashbob.local() as client:
        device = client.info().devices
        print(f"server: {client.address} {', '.join(d.name for d in device)}")
        yield lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True, client=client)


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention in plain PyTorch, with the score matrix in memory."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1) @ v


class SelfAttention(nn.Module):
    """Multi-head causal self-attention whose middle is the caller's; weights may be passed in, as fast weights are."""

    def __init__(self, width: int, heads: int, attention: Attention) -> None:
        super().__init__()
        self.heads, self.attention = heads, attention
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, width] to the same."""
        batch, rows, width = x.shape
        qkv = self.qkv(x).view(batch, rows, 3, self.heads, width // self.heads)
        o = self.attention(*(t.transpose(1, 2) for t in qkv.unbind(2)))
        return self.out(o.transpose(1, 2).reshape(batch, rows, width))


class Transformer(nn.Module):
    """A small pre-norm transformer from features to outputs."""

    def __init__(
        self, inputs: int, outputs: int, attention: Attention, *, width: int = 32, heads: int = 4, layers: int = 2
    ) -> None:
        super().__init__()
        self.read_in, self.read_out = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.mixers = nn.ModuleList(SelfAttention(width, heads, attention) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width)) for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, inputs] to [B, N, outputs]."""
        x = self.read_in(x)
        for i, (mixer, feed) in enumerate(zip(self.mixers, self.feeds, strict=True)):
            x = x + mixer(self.norms[2 * i](x))
            x = x + feed(self.norms[2 * i + 1](x))
        return self.read_out(x)


def compare(what: str, got: Sequence[Tensor], expected: Sequence[Tensor], bar: float = 1e-9) -> None:
    """Prints the relative difference from plain PyTorch; ends the program where it is over the bar."""
    difference = torch.stack([(a - b).norm() for a, b in zip(got, expected, strict=True)]).norm()
    error = float(difference / torch.stack([b.norm() for b in expected]).norm())
    print(f"{what}: relative difference from plain PyTorch {error:.1e} (bar {bar:.0e})")
    if not error <= bar:
        sys.exit(1)
