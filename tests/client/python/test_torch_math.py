"""flashbob.torch against torch's own attention, its math path, in torch's own words. Needs torch >= 2.5."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from flashbob.torch import scaled_dot_product_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_reference import relative_error

pytestmark = pytest.mark.usefixtures("client")
Tensor = torch.Tensor

CASES: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    # name: ((heads, kv heads, N_q, N_k), arguments of torch's own)
    "full": ((4, 4, 96, 96), {}),
    "causal": ((4, 4, 96, 96), {"is_causal": True}),
    "causal, more keys": ((4, 4, 96, 128), {"is_causal": True}),
    "grouped, scaled": ((8, 2, 96, 80), {"enable_gqa": True, "scale": 0.2}),
}


def _derivatives(attention: Any, inputs: list[Tensor], do: Tensor, u: list[Tensor], **arguments: Any) -> list[Tensor]:
    """o; dq, dk, dv; gq, gk, gv."""
    o = attention(*inputs, **arguments)
    first = torch.autograd.grad(o, inputs, do, create_graph=True)
    return [o, *first, *torch.autograd.grad(first, inputs, u)]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_within_the_bars_of_torchs_math_path(
    name: str, dtype: str, bars: dict[str, float], rng: np.random.Generator
) -> None:
    (heads, kv_heads, n_q, n_k), arguments = CASES[name]
    kind = getattr(torch, dtype)

    def draw(*shape: int) -> Tensor:
        return torch.from_numpy(rng.standard_normal(shape)).to(kind)

    inputs = [draw(1, heads, n_q, 32), draw(1, kv_heads, n_k, 32), draw(1, kv_heads, n_k, 32)]
    do, u = draw(1, heads, n_q, 32), [draw(*t.shape) for t in inputs]
    got = _derivatives(scaled_dot_product_attention, [t.clone().requires_grad_() for t in inputs], do, u, **arguments)
    # The math path in fp64 on the same, rounded inputs.
    with sdpa_kernel(SDPBackend.MATH):
        expected = _derivatives(
            functional.scaled_dot_product_attention,
            [t.double().requires_grad_() for t in inputs],
            do.double(),
            [t.double() for t in u],
            **arguments,
        )
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == kind
        assert relative_error(a, b) <= bars[dtype]
