"""flashbob.torch under torch.func, torch.compile and as a patch of torch's own function. Needs torch >= 2.4."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import flashbob
import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from flashbob.torch import packed_attention, patch, scaled_dot_product_attention
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch_reference import Transformer, reference_attention, relative_error

pytestmark = pytest.mark.usefixtures("client")
Tensor = torch.Tensor
Loss = Callable[..., Tensor]


def _mine(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True) ** 3).sum()


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (reference_attention(q, k, v, window=(-1, 0)) ** 3).sum()


def _stack(t: Tensor, dim: int = 0) -> Tensor:
    return torch.stack([t, t + 1, -t], dim)


TRANSFORMS: dict[str, Callable[[Loss, Tensor, Tensor, Tensor], Any]] = {
    "grad": lambda f, q, k, v: grad(f, argnums=(0, 1, 2))(q, k, v),
    "vjp": lambda f, q, k, v: vjp(f, q, k, v)[1](torch.tensor(2.0, dtype=q.dtype)),
    "jvp": lambda f, q, k, v: jvp(f, (q, k, v), (q + 1, k - 1, v * 2)),
    "jvp by one": lambda f, q, k, v: jvp(lambda k: f(q, k, v), (k,), (k + 1,)),
    "hessian": lambda f, q, k, v: hessian(f, argnums=(0, 1, 2))(q, k, v),
    "jacrev of jacrev": lambda f, q, k, v: jacrev(jacrev(f, argnums=(0, 1)), argnums=(0, 2))(q, k, v),
    "jacrev of jacfwd": lambda f, q, k, v: jacrev(jacfwd(f, argnums=(0, 1)), argnums=(0, 2))(q, k, v),
    "jvp of grad": lambda f, q, k, v: jvp(grad(f, argnums=(0, 1, 2)), (q, k, v), (q + 1, k - 1, v * 2)),
    "grad of jvp": lambda f, q, k, v: grad(lambda q: jvp(f, (q, k, v), (q + 1, k, v))[1])(q),
    "vmap": lambda f, q, k, v: vmap(f, in_dims=(0, None, 1))(_stack(q), k, _stack(v, 1)),
    "vmap of grad": lambda f, q, k, v: vmap(grad(f, argnums=(0, 1, 2)), in_dims=(0, 2, None))(
        _stack(q), _stack(k, 2), v
    ),
    "vmap of vmap": lambda f, q, k, v: vmap(vmap(f, in_dims=(0, None, None)), in_dims=(None, 0, None))(
        _stack(q), _stack(k), v
    ),
    "vmap of hessian": lambda f, q, k, v: vmap(hessian(f), in_dims=(0, None, None))(_stack(q), k, v),
    "vmap of jvp along many": lambda f, q, k, v: vmap(lambda t: jvp(lambda q: f(q, k, v), (q,), (t,))[1])(_stack(q)),
    "grad of vmap of jvp": lambda f, q, k, v: grad(
        lambda q: (vmap(lambda t: jvp(lambda q: f(q, k, v), (q,), (t,))[1])(_stack(k[..., :1] + q)) ** 2).sum()
    )(q),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_equals_plain_torchs(name: str, rng: np.random.Generator) -> None:
    q, k, v = (torch.from_numpy(rng.standard_normal(s)) for s in ((1, 2, 3, 2), (1, 1, 4, 2), (1, 1, 4, 3)))
    if name == "grad of vmap of jvp":
        k, v = k[:, :, :3], v[:, :, :3]
    got, _ = torch.utils._pytree.tree_flatten(TRANSFORMS[name](_mine, q, k, v))
    expected, _ = torch.utils._pytree.tree_flatten(TRANSFORMS[name](_plain, q, k, v))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert relative_error(a, b) < 1e-11


def test_vmap_and_hessian_of_packed_sequences(rng: np.random.Generator) -> None:
    q, k, v = (torch.from_numpy(rng.standard_normal((5, 2, 3))) for _ in range(3))

    def mine(q: Tensor) -> Tensor:
        return (packed_attention(q, k, v, [0, 2, 5], is_causal=True) ** 2).sum()

    def plain(q: Tensor) -> Tensor:
        parts = [
            reference_attention(*(t[a:b].transpose(0, 1) for t in (q, k, v)), window=(-1, 0))
            for a, b in ((0, 2), (2, 5))
        ]
        return sum((part**2).sum() for part in parts)

    for transform in (hessian, lambda f: lambda q: vmap(grad(f))(_stack(q))):
        assert relative_error(transform(mine)(q), transform(plain)(q)) < 1e-11


def test_forward_over_forward_is_refused(rng: np.random.Generator) -> None:
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 1, 3, 2))) for _ in range(3))
    with pytest.raises(flashbob.UnsupportedProblemError, match="forward mode over forward mode"):
        jacfwd(jacfwd(_mine))(q, k, v)


def test_compiled_function_is_one_graph_with_a_first_backward(
    client: flashbob.Client, rng: np.random.Generator
) -> None:
    q, k, v = (torch.from_numpy(rng.standard_normal((2, 2, 5, 4))) for _ in range(3))

    def loss(attention: Any, q: Tensor) -> Tensor:
        return (attention(q * 2, k, v, is_causal=True) ** 2).sum()

    compiled = torch.compile(
        lambda q: loss(lambda *a, **r: scaled_dot_product_attention(*a, **r, client=client), q),
        backend="aot_eager",
        fullgraph=True,
    )
    gradients = []
    for function in (compiled, lambda q: loss(functional.scaled_dot_product_attention, q)):
        leaf = q.clone().requires_grad_()
        function(leaf).backward()
        gradients.append(leaf.grad)
    assert relative_error(gradients[0], gradients[1]) < 1e-12


def test_custom_operators_keep_torchs_rules(client: flashbob.Client, rng: np.random.Generator) -> None:
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 2, 4, 3))).requires_grad_() for _ in range(3))
    arguments = (q, k, v, None, -1, 0, False, False, client.key)
    torch.library.opcheck(torch.ops.flashbob.attention.default, arguments)


def test_patched_model_computes_the_same(rng: np.random.Generator) -> None:
    torch.manual_seed(int(rng.integers(1 << 31)))
    model = Transformer(lambda *a, **r: functional.scaled_dot_product_attention(*a, **r)).double()
    x = torch.from_numpy(rng.standard_normal((2, 6, 16)))
    expected = model(x)
    original = functional.scaled_dot_product_attention
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with patch():
            assert functional.scaled_dot_product_attention is not original
            got = model(x)
    assert functional.scaled_dot_product_attention is original
    assert relative_error(got, expected) < 1e-12


def test_patched_layer_of_torchs_own_computes_the_same(rng: np.random.Generator) -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).double().train()
    x = torch.from_numpy(rng.standard_normal((2, 5, 8))).requires_grad_()
    expected = layer(x, x, x, need_weights=False)[0]
    with patch():
        got = layer(x, x, x, need_weights=False)[0]
    assert relative_error(got, expected) < 1e-12


def test_patch_falls_back_with_one_warning(rng: np.random.Generator) -> None:
    q, k, v = (torch.from_numpy(rng.standard_normal((1, 2, 5, 4))) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = functional.scaled_dot_product_attention(q, k, v, mask)
    with patch(), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(functional.scaled_dot_product_attention(q, k, v, mask), expected)
        wide = torch.zeros(1, 1, 2, 300, dtype=torch.float64)
        assert functional.scaled_dot_product_attention(wide, wide, wide).shape == wide.shape
    assert len(seen) == 1
    assert "attn_mask" in str(seen[0].message)
    assert seen[0].filename == __file__
