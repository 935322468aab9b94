"""flashbob.torch against plain PyTorch. Needs any torch from 1.13; what needs a newer one is in test_torch_func.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flashbob
import numpy as np
import pytest
import torch
from flashbob.torch import packed_attention, scaled_dot_product_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch_reference import reference_attention, relative_error

pytestmark = pytest.mark.usefixtures("client")
Tensor = torch.Tensor

CASES: dict[str, tuple[tuple[int, int, int, int, int], dict[str, Any]]] = {
    # name: ((heads, kv heads, N_q, N_k, D), arguments)
    "mha": ((2, 2, 4, 4, 3), {}),
    "gqa": ((4, 2, 3, 4, 2), {"enable_gqa": True}),
    "mqa": ((3, 1, 3, 3, 2), {}),
    "causal top-left": ((1, 1, 3, 5, 2), {"is_causal": True}),
    "causal bottom-right": ((1, 1, 3, 5, 2), {"is_causal": True, "causal_alignment": "bottom-right"}),
    "causal with empty rows": ((1, 1, 5, 3, 2), {"is_causal": True, "causal_alignment": "bottom-right"}),
    "window": ((2, 1, 5, 5, 2), {"window": (1, 2), "enable_gqa": True}),
    "scale": ((2, 2, 3, 6, 2), {"scale": 0.7}),
}


def _leaves(generator: np.random.Generator, *shapes: tuple[int, ...], dtype: Any = torch.float64) -> list[Tensor]:
    return [torch.from_numpy(generator.standard_normal(s)).to(dtype).requires_grad_() for s in shapes]


def _qkv(rng: np.random.Generator, sizes: tuple[int, int, int, int, int], value_dim: int = 2) -> list[Tensor]:
    heads, kv_heads, n_q, n_k, dim = sizes
    return _leaves(rng, (1, heads, n_q, dim), (1, kv_heads, n_k, dim), (1, kv_heads, n_k, value_dim))


def _reference(q: Tensor, k: Tensor, v: Tensor, arguments: dict[str, Any]) -> Tensor:
    left, right = arguments.get("window", (-1, -1))
    return reference_attention(
        q,
        k,
        v,
        window=(left, 0 if arguments.get("is_causal") else right),
        bottom_right=arguments.get("causal_alignment") == "bottom-right",
        scale=arguments.get("scale"),
    )


@pytest.mark.parametrize("name", CASES)
def test_gradcheck_gradgradcheck_and_forward_mode(name: str, rng: np.random.Generator) -> None:
    sizes, arguments = CASES[name]
    inputs = _qkv(rng, sizes)

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(q, k, v, **arguments)

    assert gradcheck(attention, inputs, check_forward_ad=True)
    # torch 1.13 has no forward over reverse for functions of one's own.
    assert gradgradcheck(attention, inputs, check_fwd_over_rev=not torch.__version__.startswith("1."))


def test_gradcheck_of_packed_sequences(rng: np.random.Generator) -> None:
    starts_q, starts_k = torch.tensor([0, 2, 2, 5], dtype=torch.int32), torch.tensor([0, 3, 4, 6], dtype=torch.int32)
    inputs = _leaves(rng, (5, 2, 3), (6, 1, 3), (6, 1, 2))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return packed_attention(q, k, v, starts_q, starts_k, is_causal=True, causal_alignment="bottom-right")

    assert gradcheck(attention, inputs, check_forward_ad=True)
    assert gradgradcheck(attention, inputs, check_fwd_over_rev=not torch.__version__.startswith("1."))


def test_packed_sequences_equal_each_alone(rng: np.random.Generator) -> None:
    q, k, v = _leaves(rng, (7, 4, 5), (7, 2, 5), (7, 2, 3))
    got = packed_attention(q, k, v, [0, 3, 3, 7], is_causal=True)
    for start, end in ((0, 3), (3, 7)):
        rows = [t[start:end].transpose(0, 1) for t in (q, k, v)]
        expected = reference_attention(*rows, window=(-1, 0)).transpose(0, 1)
        assert relative_error(got[start:end], expected) < 1e-13


@settings(max_examples=40)
@given(data=st.data())
def test_first_and_second_order_equal_plain_torch(data: st.DataObject) -> None:
    kv_heads, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    n_q, n_k = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    dim, value_dim = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    leading = data.draw(st.sampled_from([(), (1,), (2,), (2, 1), (1, 3)]))
    arguments: dict[str, Any] = {
        "is_causal": data.draw(st.booleans()),
        "causal_alignment": data.draw(st.sampled_from(["top-left", "bottom-right"])),
        "window": (data.draw(st.integers(-1, 6)), data.draw(st.integers(-1, 6))),
        "scale": data.draw(st.sampled_from([None, 0.5, 2.0, -1.0])),
        "enable_gqa": True,
    }
    generator = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    shapes = [(kv_heads * group, n_q, dim), (kv_heads, n_k, dim), (kv_heads, n_k, value_dim)]
    inputs = _leaves(generator, *((*leading, *shape) for shape in shapes))
    weights = [torch.from_numpy(generator.standard_normal(t.shape)) for t in inputs]

    def derivatives(o: Tensor) -> list[Tensor]:
        loss = (o * torch.linspace(-1, 1, o.numel(), dtype=o.dtype).view(o.shape)).sum() + (o**2).sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = torch.autograd.grad(sum((g * w).sum() for g, w in zip(first, weights, strict=True)), inputs)
        return [o, *first, *second]

    got = derivatives(scaled_dot_product_attention(*inputs, **arguments))
    expected = derivatives(_reference(*inputs, arguments))
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert relative_error(a, b) < 1e-11


@settings(max_examples=30)
@given(data=st.data())
def test_forward_mode_equals_plain_torch(data: st.DataObject) -> None:
    kv_heads, group = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    n_q, n_k = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 20))
    dim, value_dim = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    arguments: dict[str, Any] = {
        "is_causal": data.draw(st.booleans()),
        "causal_alignment": data.draw(st.sampled_from(["top-left", "bottom-right"])),
        "window": (data.draw(st.integers(-1, 6)), data.draw(st.integers(-1, 6))),
        "enable_gqa": True,
    }
    moving = data.draw(st.sets(st.integers(0, 2), min_size=1))
    generator = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    shapes = [(1, kv_heads * group, n_q, dim), (1, kv_heads, n_k, dim), (1, kv_heads, n_k, value_dim)]
    inputs = [t.detach() for t in _leaves(generator, *shapes)]
    tangents = [torch.from_numpy(generator.standard_normal(shape)) for shape in shapes]

    def tangent(attention: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(t, tangents[i]) if i in moving else t for i, t in enumerate(inputs)]
            o, to = forward_ad.unpack_dual(attention(*duals))
            return o, to

    got = tangent(lambda q, k, v: scaled_dot_product_attention(q, k, v, **arguments))
    expected = tangent(lambda q, k, v: _reference(q, k, v, arguments))
    for a, b in zip(got, expected, strict=True):
        assert relative_error(a, b) < 1e-11


@settings(max_examples=30)
@given(data=st.data())
def test_packed_sequences_equal_plain_torch_to_second_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    lengths_q = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    lengths_k = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    kv_heads, group, dim = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2)), data.draw(st.integers(1, 5))
    arguments: dict[str, Any] = {
        "is_causal": data.draw(st.booleans()),
        "causal_alignment": data.draw(st.sampled_from(["top-left", "bottom-right"])),
        "window": (data.draw(st.integers(-1, 4)), data.draw(st.integers(-1, 4))),
    }
    generator = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    starts_q, starts_k = ([0, *np.cumsum(lengths).tolist()] for lengths in (lengths_q, lengths_k))
    inputs = _leaves(
        generator, (starts_q[-1], kv_heads * group, dim), *[(starts_k[-1], kv_heads, dim) for _ in range(2)]
    )
    weights = [torch.from_numpy(generator.standard_normal(t.shape)) for t in inputs]

    def each_alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = []
        for b in range(count):
            rows = [
                t[starts[b] : starts[b + 1]].transpose(0, 1)
                for t, starts in ((q, starts_q), (k, starts_k), (v, starts_k))
            ]
            # Without keys every row gives 0.
            o = _reference(*rows, arguments) if lengths_k[b] else rows[0] * 0
            parts.append(o.transpose(0, 1))
        return torch.cat(parts)

    def derivatives(o: Tensor) -> list[Tensor]:
        first = torch.autograd.grad((o**3).sum() + o.sum(), inputs, create_graph=True, allow_unused=True)
        first = [torch.zeros_like(t) if g is None else g for g, t in zip(first, inputs, strict=True)]
        total = sum((g * w).sum() for g, w in zip(first, weights, strict=True)) + 0 * sum(t.sum() for t in inputs)
        return [o, *first, *torch.autograd.grad(total, inputs)]

    got = derivatives(packed_attention(*inputs, starts_q, starts_k, **arguments))
    for a, b in zip(got, derivatives(each_alone(*inputs)), strict=True):
        assert a.shape == b.shape
        assert relative_error(a, b) < 1e-11


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_lower_precisions_stay_within_their_bars(dtype: str, bars: dict[str, float], rng: np.random.Generator) -> None:
    kind = getattr(torch, dtype)
    low = _leaves(rng, (2, 4, 64, 32), (2, 4, 64, 32), (2, 4, 64, 32), dtype=kind)
    high = [t.detach().double().requires_grad_() for t in low]
    do = torch.from_numpy(rng.standard_normal((2, 4, 64, 32))).to(kind)
    weights = [torch.from_numpy(rng.standard_normal(t.shape)).to(kind) for t in low]

    def derivatives(o: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        first = torch.autograd.grad(o, inputs, do.to(o.dtype), create_graph=True)
        return [o, *first, *torch.autograd.grad(first, inputs, [w.to(o.dtype) for w in weights])]

    got = derivatives(scaled_dot_product_attention(*low, residuals="client"), low)
    expected = derivatives(reference_attention(*high), high)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == kind
        assert relative_error(a, b) <= bars[dtype]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_gradient_penalty_is_differentiable_in_every_dtype(
    dtype: str, bars: dict[str, float], rng: np.random.Generator
) -> None:
    low = _leaves(rng, *3 * ((4, 8, 128, 64),), dtype=getattr(torch, dtype))
    high = [t.detach().double().requires_grad_() for t in low]

    def through_the_penalty(o: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        slopes = torch.autograd.grad(o.sum(), inputs, create_graph=True)
        penalty = sum((((slope.double().flatten(1).norm(dim=1) - 1) ** 2).mean() for slope in slopes), torch.zeros(()))
        return list(torch.autograd.grad(penalty, inputs))

    got = through_the_penalty(scaled_dot_product_attention(*low), low)
    expected = through_the_penalty(reference_attention(*high), high)
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == getattr(torch, dtype)
        # Of a chain: its last operation takes what the one before rounded.
        assert relative_error(a, b) <= 5 * bars[dtype]


@pytest.mark.parametrize("layout", ["BHND", "BNHD", "odd"])
def test_any_strides_give_the_same(layout: str, rng: np.random.Generator) -> None:
    def lay(t: Tensor) -> Tensor:
        if layout == "BNHD":
            return t.transpose(1, 2).contiguous().transpose(1, 2)
        return t.transpose(0, 3).contiguous().transpose(0, 3) if layout == "odd" else t

    plain = [t.detach() for t in _leaves(rng, (2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4))]
    laid = [lay(t).requires_grad_() for t in plain]
    o = scaled_dot_product_attention(*laid, is_causal=True)
    do = lay(torch.from_numpy(rng.standard_normal((2, 3, 5, 4))))
    exact = [t.clone().requires_grad_() for t in plain]
    expected = reference_attention(*exact, window=(-1, 0))
    assert relative_error(o, expected) < 1e-13
    for a, b in zip(torch.autograd.grad(o, laid, do), torch.autograd.grad(expected, exact, do), strict=True):
        assert relative_error(a, b) < 1e-12


def test_leading_axes_broadcast_as_torchs(rng: np.random.Generator) -> None:
    q, k, v = _leaves(rng, (2, 1, 3, 5, 4), (1, 2, 3, 6, 4), (2, 3, 6, 4))
    assert relative_error(scaled_dot_product_attention(q, k, v), reference_attention(q, k, v)) < 1e-13
    for shape in ((5, 4), (3, 5, 4)):
        (x,) = _leaves(rng, shape)
        y = x if x.dim() > 2 else x[None]
        expected = reference_attention(y, y, y).reshape(shape)
        assert relative_error(scaled_dot_product_attention(x, x, x), expected) < 1e-13


def test_autocast_lowers_the_precision(rng: np.random.Generator) -> None:
    q, k, v = (t.detach() for t in _leaves(rng, (1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4), dtype=torch.float32))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert scaled_dot_product_attention(q, k, v).dtype == torch.bfloat16
        assert scaled_dot_product_attention(q.double(), k.double(), v.double()).dtype == torch.float64
    assert scaled_dot_product_attention(q, k, v).dtype == torch.float32


def test_what_is_not_served_raises(rng: np.random.Generator) -> None:
    q, k, v = (t.detach() for t in _leaves(rng, (1, 4, 5, 4), (1, 2, 5, 4), (1, 2, 5, 4)))
    with pytest.raises(flashbob.UnsupportedProblemError, match="attn_mask"):
        scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(5, 5, dtype=torch.bool), enable_gqa=True)
    with pytest.raises(flashbob.UnsupportedProblemError, match=r"dropout_p=0\.1"):
        scaled_dot_product_attention(q, k, v, dropout_p=0.1, enable_gqa=True)
    with pytest.raises(TypeError, match="int64"):
        scaled_dot_product_attention(q.long(), k, v, enable_gqa=True)
    with pytest.raises(TypeError, match="float32"):
        scaled_dot_product_attention(q.float(), k, v, enable_gqa=True)
    with pytest.raises(ValueError, match="4 query heads and 2 key heads"):
        scaled_dot_product_attention(q, k, v)
    with pytest.raises(ValueError, match=r"leading axes \[2\], \[3\], \[1\] do not broadcast"):
        scaled_dot_product_attention(*(q.expand(n, *q.shape[1:]) for n in (2, 3, 1)))
    with pytest.raises(ValueError, match="head dim 3"):
        scaled_dot_product_attention(q[..., :3], k, v, enable_gqa=True)


def test_third_derivatives_are_refused_and_never_silently_zero(rng: np.random.Generator) -> None:
    q, k, v = _leaves(rng, (1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2))
    (dq,) = torch.autograd.grad((scaled_dot_product_attention(q, k, v) ** 2).sum(), q, create_graph=True)
    (gq,) = torch.autograd.grad((dq**2).sum(), q, create_graph=True)
    with pytest.raises(flashbob.UnsupportedProblemError, match="third derivative"):
        torch.autograd.grad(gq.sum(), q)


@pytest.mark.parametrize("product", ["hvp", "vhp", "jvp"])
def test_products_of_torchs_functional_api(product: str, rng: np.random.Generator) -> None:
    q, k, v = (t.detach() for t in _leaves(rng, (1, 2, 4, 3), (1, 2, 4, 3), (1, 2, 4, 3)))
    t = torch.from_numpy(rng.standard_normal(q.shape))
    compute = getattr(torch.autograd.functional, product)
    got = compute(lambda x: (scaled_dot_product_attention(x, k, v) ** 3).sum(), q, t)
    expected = compute(lambda x: (reference_attention(x, k, v) ** 3).sum(), q, t)
    for a, b in zip(got, expected, strict=True):
        assert relative_error(a, b) < 1e-11
