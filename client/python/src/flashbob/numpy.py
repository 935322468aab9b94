"""The four operations on numpy arrays, with the client of `flashbob.default_client` where none is given.

    import flashbob.numpy as fb
    o, lse = fb.forward(q, k, v, causal=True)

The keyword arguments are those of the methods of `flashbob.Client` of the same names.
"""

from __future__ import annotations

from typing import Any

from flashbob._calls import Backward, DoubleBackward, Forward, Input, Jvp
from flashbob._default import default_client
from flashbob.client import Client


def forward(q: Input, k: Input, v: Input, *, client: Client | None = None, **options: Any) -> Forward:
    """As `flashbob.Client.forward`."""
    return (client or default_client()).forward(q, k, v, **options)


def backward(q: Input, k: Input, v: Input, do: Input, *, client: Client | None = None, **options: Any) -> Backward:
    """As `flashbob.Client.backward`."""
    return (client or default_client()).backward(q, k, v, do, **options)


def double_backward(
    q: Input, k: Input, v: Input, do: Input, *, client: Client | None = None, **options: Any
) -> DoubleBackward:
    """As `flashbob.Client.double_backward`."""
    return (client or default_client()).double_backward(q, k, v, do, **options)


def jvp(q: Input, k: Input, v: Input, *, client: Client | None = None, **options: Any) -> Jvp:
    """As `flashbob.Client.jvp`."""
    return (client or default_client()).jvp(q, k, v, **options)
