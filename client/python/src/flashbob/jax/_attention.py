"""The public function: arguments checked, then one primitive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from flashbob._default import default_client
from flashbob.client import Client
from flashbob.jax._primitives import Config, forward_p
from flashbob.problem import Alignment, Layout, make_problem

_DTYPES = ("float64", "float32", "float16", "bfloat16")


def attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    causal: bool | Alignment = False,
    window: tuple[int, int] | None = None,
    alignment: Alignment = "top-left",
    scale: float | None = None,
    layout: Layout = "BHND",
    cu_seqlens_q: Sequence[int] | None = None,
    cu_seqlens_k: Sequence[int] | None = None,
    allow_tf32: bool = False,
    client: Client | None = None,
) -> jax.Array:
    """softmax(scale Q K^T) V, differentiable twice: grad of grad, hessian, jvp, jvp of grad; under jit and vmap.

    The third derivative and forward over forward raise. A row that sees no key gives 0.

    Args:
        q: [B, H, N_q, D], or as the layout says; float64 (with jax_enable_x64), float32, float16 or bfloat16.
        k: [B, H_kv, N_k, D]; H_kv divides H.
        v: [B, H_kv, N_k, D_v].
        causal: closes the right side of the window; may name the alignment.
        window: (left, right), how many keys to either side of the diagonal a query sees; -1 leaves a side open.
        alignment: where the diagonal starts where N_q != N_k: "top-left" or "bottom-right".
        scale: of the softmax; 1 / sqrt(D) by default.
        layout: "BHND", "BNHD", or "THD" with the cu_seqlens.
        cu_seqlens_q: packed: the B + 1 rows where query sequences begin, known when the function is traced.
        cu_seqlens_k: the same for the keys.
        allow_tf32: float32 factors may be rounded to TF32.
        client: the server's; `flashbob.default_client()` by default, as it is when the function is traced.

    Returns:
        Shaped as q with D_v in place of D, in the inputs' dtype.
    """
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    problem = make_problem(
        layout=layout,
        causal=causal,
        window=window,
        alignment=alignment,
        scale=scale,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        allow_tf32=allow_tf32,
    )
    rank = 3 if problem.layout == "THD" else 4
    named: dict[str, Any] = {"q": q, "k": k, "v": v}
    for name, array in named.items():
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"{name} has dtype {array.dtype.name}: only {', '.join(_DTYPES)} are computed")
        if array.ndim != rank:
            raise ValueError(f"{name} has shape {list(array.shape)}: {problem.layout} has {rank} axes")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"q is {q.dtype.name}, k {k.dtype.name} and v {v.dtype.name}: they must be the same")
    config = Config(client if client is not None else default_client(), problem)
    output: jax.Array = forward_p.bind(q, k, v, config=config)[0]
    return output
