"""flashbob.jax against plain JAX. Needs jax (PyPI's; Debian has none)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import flashbob
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flashbob.jax import attention

pytestmark = pytest.mark.usefixtures("client", "x64")
Loss = Callable[..., Any]


@pytest.fixture(scope="module")
def x64() -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def _reference(q: Any, k: Any, v: Any, *, left: int = -1, right: int = -1, bottom_right: bool = False) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = jnp.repeat(k, group, 1), jnp.repeat(v, group, 1)
    n_q, n_k = q.shape[2], k.shape[2]
    i = np.arange(n_q)[:, None] + (n_k - n_q if bottom_right else 0)
    j = np.arange(n_k)[None, :]
    visible = np.ones((n_q, n_k), bool)
    if left >= 0:
        visible &= j >= i - left
    if right >= 0:
        visible &= j <= i + right
    scores = jnp.where(visible, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -jnp.inf)
    return jax.nn.softmax(scores) @ v


def _mine(q: Any, k: Any, v: Any) -> Any:
    return (attention(q, k, v, causal=True) ** 3).sum()


def _plain(q: Any, k: Any, v: Any) -> Any:
    return (_reference(q, k, v, right=0) ** 3).sum()


def _stack(t: Any, axis: int = 0) -> Any:
    return jnp.stack([t, t + 1, -t], axis)


def _close(got: Any, expected: Any, bar: float = 1e-11) -> None:
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert a.shape == b.shape
        assert float(jnp.linalg.norm(a - b)) <= bar * max(1.0, float(jnp.linalg.norm(b)))


def _inputs(rng: np.random.Generator, n_q: int = 3, n_k: int = 3) -> list[Any]:
    return [jnp.asarray(rng.standard_normal(s)) for s in ((1, 2, n_q, 2), (1, 1, n_k, 2), (1, 1, n_k, 3))]


def _penalty(f: Loss) -> Loss:
    return lambda q, k, v: (jax.grad(f, 1)(q, k, v) ** 2).sum()


TRANSFORMS: dict[str, Callable[[Loss, Any, Any, Any], Any]] = {
    "value": lambda f, q, k, v: f(q, k, v),
    "grad": lambda f, q, k, v: jax.grad(f, (0, 1, 2))(q, k, v),
    "grad of grad": lambda f, q, k, v: jax.grad(_penalty(f), (0, 1, 2))(q, k, v),
    "jvp": lambda f, q, k, v: jax.jvp(f, (q, k, v), (q + 1, k - 1, v * 2)),
    "linearize": lambda f, q, k, v: jax.linearize(f, q, k, v)[1](q, k, v),
    "jvp of grad": lambda f, q, k, v: jax.jvp(jax.grad(f, (0, 1, 2)), (q, k, v), (q + 1, k - 1, v * 2)),
    "grad of jvp": lambda f, q, k, v: jax.grad(lambda q: jax.jvp(f, (q, k, v), (q + 1, k, v))[1])(q),
    "hessian": lambda f, q, k, v: jax.hessian(f, (0, 1, 2))(q, k, v),
    "jacrev of jacrev": lambda f, q, k, v: jax.jacrev(jax.jacrev(f, (0, 1)), (0, 2))(q, k, v),
    "jacrev of jacfwd": lambda f, q, k, v: jax.jacrev(jax.jacfwd(f, (0, 1)), (0, 2))(q, k, v),
    "checkpoint": lambda f, q, k, v: jax.grad(jax.checkpoint(f), (0, 1, 2))(q, k, v),
    "vmap": lambda f, q, k, v: jax.vmap(f, (0, None, 1))(_stack(q), k, _stack(v, 1)),
    "vmap of grad": lambda f, q, k, v: jax.vmap(jax.grad(f, (0, 1, 2)), (0, 2, None))(_stack(q), _stack(k, 2), v),
    "vmap of vmap": lambda f, q, k, v: jax.vmap(jax.vmap(f, (0, None, None)), (None, 0, None))(_stack(q), _stack(k), v),
    "vmap of hessian": lambda f, q, k, v: jax.vmap(jax.hessian(f), (0, None, None))(_stack(q), k, v),
    "hessian-vector products along many": lambda f, q, k, v: jax.vmap(
        lambda t: jax.jvp(jax.grad(f), (q, k, v), (t, k, v))[1]
    )(_stack(q)),
    "grad of vmap of jvp": lambda f, q, k, v: jax.grad(
        lambda q: (jax.vmap(lambda t: jax.jvp(lambda q: f(q, k, v), (q,), (t,))[1])(_stack(q)) ** 2).sum()
    )(q),
}


def _expected(transform: Callable[..., Any], *inputs: Any) -> Any:
    """Plain JAX's answer, compiled whole: op by op, compilation would take most of the time."""
    return jax.jit(transform)(*inputs)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_compiled_transform_equals_plain_jaxs(name: str, rng: np.random.Generator) -> None:
    inputs = _inputs(rng)
    transform = TRANSFORMS[name]
    got = jax.jit(functools.partial(transform, _mine))(*inputs)
    _close(got, _expected(functools.partial(transform, _plain), *inputs))


@pytest.mark.parametrize("name", ["value", "grad of grad", "jvp of grad", "vmap of grad"])
def test_transform_without_jit_equals_plain_jaxs(name: str, rng: np.random.Generator) -> None:
    inputs = _inputs(rng)
    transform = TRANSFORMS[name]
    _close(transform(_mine, *inputs), _expected(functools.partial(transform, _plain), *inputs))


@pytest.mark.parametrize(
    ("arguments", "reference", "lengths"),
    [
        ({}, {}, (3, 5)),
        ({"causal": "bottom-right"}, {"right": 0, "bottom_right": True}, (3, 5)),
        ({"window": (1, 1)}, {"left": 1, "right": 1}, (4, 4)),
    ],
    ids=["full", "causal bottom-right", "window"],
)
def test_masks_to_second_order(
    arguments: dict[str, Any], reference: dict[str, Any], lengths: tuple[int, int], rng: np.random.Generator
) -> None:
    q, k, v = _inputs(rng, *lengths)
    mine = _penalty(lambda *x: (attention(*x, **arguments) ** 3).sum())
    plain = _penalty(lambda *x: (_reference(*x, **reference) ** 3).sum())
    _close(jax.jit(jax.grad(mine, (0, 1, 2)))(q, k, v), _expected(jax.grad(plain, (0, 1, 2)), q, k, v))


def test_layouts_and_packed_sequences_agree(rng: np.random.Generator) -> None:
    q, k, v = (jnp.asarray(rng.standard_normal((2, 3, 4, 5))) for _ in range(3))
    expected = _penalty(lambda *x: (attention(*x) ** 3).sum())
    wanted = jax.jit(jax.grad(expected, (0, 1, 2)))(q, k, v)
    mapped_wanted = jax.jit(jax.vmap(jax.grad(expected)))(*(_stack(t) for t in (q, k, v)))

    def rows_first(t: Any) -> Any:
        return t.swapaxes(1, 2)

    def packed(t: Any) -> Any:
        return rows_first(t).reshape(8, 3, 5)

    for convert, arguments in (
        (rows_first, {"layout": "BNHD"}),
        (packed, {"cu_seqlens_q": [0, 4, 8], "cu_seqlens_k": [0, 4, 8]}),
    ):
        mine = _penalty(lambda *x, arguments=arguments: (attention(*x, **arguments) ** 3).sum())
        got = jax.jit(jax.grad(mine, (0, 1, 2)))(*(convert(t) for t in (q, k, v)))
        _close(got, [convert(t) for t in wanted])
        mapped = jax.jit(jax.vmap(jax.grad(mine)))(*(_stack(convert(t)) for t in (q, k, v)))
        _close(mapped, jnp.stack([convert(t) for t in mapped_wanted]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_lower_precisions_stay_within_their_bars(dtype: str, bars: dict[str, float], rng: np.random.Generator) -> None:
    q, k, v = (jnp.asarray(rng.standard_normal((1, 4, 64, 32)), dtype) for _ in range(3))
    got = attention(q, k, v)
    assert got.dtype == q.dtype
    _close(got.astype(jnp.float64), _reference(*(t.astype(jnp.float64) for t in (q, k, v))), bars[dtype])


def test_what_is_not_served_raises(rng: np.random.Generator) -> None:
    q, k, v = _inputs(rng)
    with pytest.raises(flashbob.UnsupportedProblemError, match="forward mode over forward mode"):
        jax.jacfwd(jax.jacfwd(_mine))(q, k, v)
    with pytest.raises(flashbob.UnsupportedProblemError, match="third derivative"):
        jax.grad(lambda q: jax.grad(lambda q: jax.grad(_mine)(q, k, v).sum())(q).sum())(q)
    with pytest.raises(TypeError, match="int64"):
        attention(q.astype(jnp.int64), k, v)
    with pytest.raises(ValueError, match="4 axes"):
        attention(q[0], k, v)
