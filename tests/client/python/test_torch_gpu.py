"""flashbob.torch on CUDA tensors, with whatever engine the server has. Needs a GPU and torch >= 2.4."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flashbob.torch import packed_attention, scaled_dot_product_attention
from torch.func import grad, jvp, vmap
from torch_reference import reference_attention, relative_error

pytestmark = [
    pytest.mark.usefixtures("client"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
Tensor = torch.Tensor


def _draw(rng: np.random.Generator, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(rng.standard_normal(shape)).to("cuda", dtype)


@pytest.mark.parametrize("residuals", ["client", "server"])
@pytest.mark.parametrize("rows_first", [False, True])
def test_second_order_on_the_gpu_equals_plain_torchs(
    residuals: str, rows_first: bool, rng: np.random.Generator
) -> None:
    plain = [_draw(rng, 2, 3, 33, 16) for _ in range(3)]
    mine = [t.transpose(1, 2).contiguous().transpose(1, 2) if rows_first else t.clone() for t in plain]

    def penalty(o: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        first = torch.autograd.grad((o**3).sum(), inputs, create_graph=True)
        return [o, *first, *torch.autograd.grad(sum((g**2).sum() for g in first), inputs)]

    got_inputs, inputs = ([t.requires_grad_() for t in tensors] for tensors in (mine, plain))
    got = penalty(scaled_dot_product_attention(*got_inputs, is_causal=True, residuals=residuals), got_inputs)
    host = [t.detach().cpu().requires_grad_() for t in inputs]
    for a, b in zip(got, penalty(reference_attention(*host, window=(-1, 0)), host), strict=True):
        assert a.device.type == "cuda"
        assert relative_error(a.cpu(), b) < 1e-11


def test_func_transforms_on_the_gpu(rng: np.random.Generator) -> None:
    q, k, v, t = (_draw(rng, 1, 2, 9, 8) for _ in range(4))

    def of(attention: object, device: str) -> list[Tensor]:
        x, y, z, along = (each.to(device) for each in (q, k, v, t))
        loss = lambda x: (attention(x, y, z) ** 3).sum()  # type: ignore[operator]  # noqa: E731
        mapped = vmap(grad(loss))(torch.stack([x, x + 1]))
        return [mapped.cpu(), jvp(grad(loss), (x,), (along,))[1].cpu()]

    for a, b in zip(of(scaled_dot_product_attention, "cuda"), of(reference_attention, "cpu"), strict=True):
        assert relative_error(a, b) < 1e-11


def test_packed_sequences_and_their_starts_may_lie_on_the_gpu(rng: np.random.Generator) -> None:
    q, k, v = (_draw(rng, 7, 2, 4) for _ in range(3))
    starts = torch.tensor([0, 3, 7], dtype=torch.int32, device="cuda")
    got = packed_attention(q, k, v, starts)
    assert got.device.type == "cuda"
    for start, end in ((0, 3), (3, 7)):
        rows = [t[start:end].transpose(0, 1).cpu() for t in (q, k, v)]
        assert relative_error(got[start:end].cpu(), reference_attention(*rows).transpose(0, 1)) < 1e-12


def test_autocast_and_compile_on_the_gpu(rng: np.random.Generator) -> None:
    q, k, v = (_draw(rng, 1, 4, 128, 64, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        low = scaled_dot_product_attention(q, k, v)
    assert low.dtype == torch.bfloat16
    exact = reference_attention(*(t.bfloat16().double().cpu() for t in (q, k, v)))
    assert relative_error(low.cpu(), exact) < 2.7e-3
    compiled = torch.compile(lambda q: scaled_dot_product_attention(q, k, v), backend="eager", fullgraph=True)
    assert relative_error(compiled(q).cpu(), scaled_dot_product_attention(q, k, v).cpu()) < 1e-6
