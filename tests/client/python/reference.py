"""Attention's derivatives in numpy, fp64, with the score matrix in memory: the formulas, one head a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def visible(n_q: int, n_k: int, left: int, right: int, bottom_right: bool) -> Array:
    """Which keys (columns) each query (row) sees."""
    i = np.arange(n_q)[:, None] + (n_k - n_q if bottom_right else 0)
    j = np.arange(n_k)[None, :]
    mask = np.ones((n_q, n_k), bool)
    if left >= 0:
        mask &= j >= i - left
    if right >= 0:
        mask &= j <= i + right
    return mask


def one_head(operation: str, x: dict[str, Array], mask: Array, scale: float) -> dict[str, Array]:
    """Every output of an operation for one head and one probe; u's and t's that are not in `x` are zeros."""
    q, k, v = x["q"], x["k"], x["v"]
    s = np.where(mask, scale * (q @ k.T), -np.inf)
    top = s.max(axis=1, initial=-np.inf)
    safe = np.where(np.isfinite(top), top, 0.0)
    e = np.exp(s - safe[:, None])
    total = e.sum(axis=1)
    with np.errstate(divide="ignore"):
        lse = safe + np.log(total)
    p = e / np.where(total > 0, total, 1.0)[:, None]
    o = p @ v
    if operation == "forward":
        return {"o": o, "lse": lse}

    def first_order(do: Array) -> dict[str, Array]:
        d = (do * o).sum(axis=1, keepdims=True)
        ds = p * (do @ v.T - d)
        return {"dq": scale * ds @ k, "dk": scale * ds.T @ q, "dv": p.T @ do}

    if operation == "backward":
        return first_order(x["do"])

    letter = "u" if operation == "double_backward" else "t"
    tq, tk, tv = (x.get(letter + n, np.zeros_like(x[n])) for n in "qkv")
    g = scale * (tq @ k.T + q @ tk.T)
    c = (p * g).sum(axis=1, keepdims=True)
    to = (p * g) @ v + p @ tv - c * o
    out = {"to": to, "tlse": c[:, 0]}
    if "do" not in x:
        return out
    do = x["do"]
    d = (do * o).sum(axis=1, keepdims=True)
    r = (do * to).sum(axis=1, keepdims=True)
    px = p * (g - c)
    py = p * ((g - c) * (do @ v.T - d) + do @ tv.T - r)
    pz = p * (do @ v.T - d)
    second = {"q": scale * (py @ k + pz @ tk), "k": scale * (py.T @ q + pz.T @ tq), "v": px.T @ do}
    if operation == "double_backward":
        return {"gq": second["q"], "gk": second["k"], "gv": second["v"], "gdo": to}
    if "tdo" in x:
        along = first_order(x["tdo"])
        second = {n: second[n] + along["d" + n] for n in "qkv"}
    return {**out, **{"td" + n: second[n] for n in "qkv"}}


def attention(
    operation: str,
    inputs: dict[str, Array],
    *,
    window: tuple[int, int] = (-1, -1),
    bottom_right: bool = False,
    scale: float | None = None,
    probes: int = 0,
    probed: frozenset[str],
) -> dict[str, Array]:
    """One dense problem, [B, H, N, D] tensors (probed ones lead with the probe axis), in fp64."""
    q, k = inputs["q"], inputs["k"]
    batch, heads, n_q, dim = q.shape
    kv_heads, n_k = k.shape[1], k.shape[2]
    scale = 1 / math.sqrt(dim) if scale is None else scale
    mask = visible(n_q, n_k, *window, bottom_right)
    result: dict[str, Array] = {}
    for probe in range(max(probes, 1)):
        for b in range(batch):
            for h in range(heads):
                kv = h * kv_heads // heads
                x = {}
                for name, array in inputs.items():
                    if name in ("o", "lse"):
                        continue
                    if probes and name in probed:
                        array = array[probe]
                    x[name] = array[b, kv if name[-1] in "kv" else h]
                for name, value in one_head(operation, x, mask, scale).items():
                    key_side = name[-1] in "kv"
                    shape = (batch, kv_heads if key_side else heads, *value.shape)
                    if probes and name in probed:
                        shape = (probes, *shape)
                    target = result.setdefault(name, np.zeros(shape))
                    if probes and name in probed:
                        target = target[probe]
                    target[b, kv if key_side else h] += value
    return result
