"""The public functions: arguments checked and brought to [B, H, N, D] or [T, H, D]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from flashbob._default import default_client
from flashbob.client import Client
from flashbob.errors import UnsupportedProblemError
from flashbob.problem import Alignment
from flashbob.torch import _compile
from flashbob.torch._bridge import DTYPES, Config, Residuals
from flashbob.torch._functions import Forward

ResidualPolicy = Literal["auto", "server", "client"]

# Below this, sending q, k and v again costs less than the calls that would keep them.
_KEEP_BYTES = 1 << 20


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int, int] | None = None,
    causal_alignment: Alignment = "top-left",
    allow_tf32: bool = False,
    residuals: ResidualPolicy = "auto",
    client: Client | None = None,
) -> Tensor:
    """softmax(scale Q K^T) V as torch.nn.functional.scaled_dot_product_attention, differentiable twice.

    Derivatives: backward, double backward, forward mode and forward over reverse, exact; also under `torch.func`
    (grad, vjp, jvp, vmap, hessian). Under `torch.compile` one opaque operator with a first backward; torch has no
    second there.
    A row that sees no key gives 0, where torch gives NaN.

    Args:
        query: [..., H, N_q, D], float64, float32, float16 or bfloat16, of any strides, on any device.
        key: [..., H_kv, N_k, D]; H_kv is H or 1, or with `enable_gqa` divides H.
        value: [..., H_kv, N_k, D_v].
        attn_mask: not served: anything but None raises.
        dropout_p: not served: anything but 0 raises.
        is_causal: query i sees keys up to i.
        scale: of the softmax; 1 / sqrt(D) by default.
        enable_gqa: lets groups of query heads share a key/value head.
        window: (left, right), how many keys to either side of the diagonal a query sees; -1 leaves a side open.
        causal_alignment: where the diagonal starts where N_q != N_k: "top-left", torch's meaning, or "bottom-right".
        allow_tf32: float32 factors may be rounded to TF32.
        residuals: where q, k, v, o and lse wait for the backward passes: "server" leaves them there, under handles
            that go when the graph does; "client" sends q, k and v again each time; "auto" is "server" for a
            server that keeps tensors and inputs of at least 1 MiB.
        client: the server's; `flashbob.default_client()` by default.

    Returns:
        [..., H, N_q, D_v] in the inputs' dtype, on their device.

    Raises:
        UnsupportedProblemError: what is not served, with the nearest that is.
        TypeError, ValueError: dtypes, devices or shapes that do not fit.
    """
    if attn_mask is not None:
        raise UnsupportedProblemError("attn_mask is not served: use is_causal, window, or packed_attention for padding")
    if dropout_p != 0.0:
        raise UnsupportedProblemError(f"dropout_p={dropout_p} is not served: only 0")
    query, key, value = _autocast(query, key, value)
    _check(query, key, value, least_rank=2)
    heads, kv_heads = _heads(query), _heads(key)
    if _heads(value) != kv_heads:
        raise ValueError(f"key has {kv_heads} heads and value {_heads(value)}")
    if enable_gqa:
        if kv_heads == 0 or heads % kv_heads:
            raise ValueError(f"{heads} query heads are no multiple of {kv_heads} key heads")
    elif kv_heads not in (heads, 1) and heads != 1:
        raise ValueError(f"{heads} query heads and {kv_heads} key heads: pass enable_gqa=True to share key heads")
    elif heads == 1:
        heads = kv_heads
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(f"query has head dim {query.shape[-1]} and key {key.shape[-1]}")
    if key.shape[-2] != value.shape[-2]:
        raise ValueError(f"key has {key.shape[-2]} rows and value {value.shape[-2]}")

    rank = max(query.dim(), key.dim(), value.dim())
    leading = _broadcast(query.shape[:-3], key.shape[:-3], value.shape[:-3])
    q = _four_axes(query, leading, heads)
    k = _four_axes(key, leading, kv_heads)
    v = _four_axes(value, leading, kv_heads)
    left, right = window if window is not None else (-1, -1)
    if is_causal:
        right = 0
    if _compile.is_compiling():
        o = _compile.attention(q, k, v, scale, left, right, causal_alignment, allow_tf32, client)
    else:
        config = Config(
            client=client if client is not None else default_client(),
            window=(int(left), int(right)),
            alignment=causal_alignment,
            scale=scale,
            allow_tf32=allow_tf32,
        )
        o = _apply(q, k, v, config, residuals)
    if rank == 2:
        return o[0, 0]
    return o.reshape(*leading, *o.shape[1:])


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | Sequence[int],
    cu_seqlens_k: Tensor | Sequence[int] | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
    causal_alignment: Alignment = "top-left",
    allow_tf32: bool = False,
    residuals: ResidualPolicy = "auto",
    client: Client | None = None,
) -> Tensor:
    """Attention within each of several sequences that lie one after the other, with no padding.

    Derivatives as `scaled_dot_product_attention`; `torch.compile` breaks the graph here.

    Args:
        query: [T_q, H, D].
        key: [T_k, H_kv, D]; H_kv divides H.
        value: [T_k, H_kv, D_v].
        cu_seqlens_q: the B + 1 rows where query sequences begin: first 0, never decreasing, last T_q.
        cu_seqlens_k: the same for keys; by default that of the queries.
        is_causal: query i of a sequence sees that sequence's keys up to i.
        scale: as `scaled_dot_product_attention`, like all that follow.
        window: the mask within each sequence.
        causal_alignment: within each sequence, with its own lengths.
        allow_tf32: float32 factors may be rounded to TF32.
        residuals: where tensors wait for the backward passes.
        client: the server's.

    Returns:
        [T_q, H, D_v].
    """
    query, key, value = _autocast(query, key, value)
    _check(query, key, value, least_rank=3)
    if not query.dim() == key.dim() == value.dim() == 3:
        raise ValueError(
            f"packed tensors have 3 axes: query {list(query.shape)}, key {list(key.shape)}, value {list(value.shape)}"
        )
    starts_q = _starts(cu_seqlens_q)
    starts_k = _starts(cu_seqlens_k) if cu_seqlens_k is not None else starts_q
    if len(starts_q) < 2:
        raise ValueError(f"cu_seqlens_q has {len(starts_q)} entries: one more than there are sequences, so at least 2")
    left, right = window if window is not None else (-1, -1)
    config = Config(
        client=client if client is not None else default_client(),
        window=(int(left), 0 if is_causal else int(right)),
        alignment=causal_alignment,
        scale=scale,
        cu_seqlens_q=starts_q,
        cu_seqlens_k=starts_k,
        allow_tf32=allow_tf32,
    )
    return _apply(query, key, value, config, residuals)


def _apply(q: Tensor, k: Tensor, v: Tensor, config: Config, policy: ResidualPolicy) -> Tensor:
    if policy not in ("auto", "server", "client"):
        raise ValueError(f"residuals={policy!r} is none of 'auto', 'server', 'client'")
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    size = sum(t.numel() * t.element_size() for t in (q, k, v))
    if (
        differentiated
        and policy != "client"
        and (policy == "server" or size >= _KEEP_BYTES)
        and config.client.keeps_tensors
    ):
        config = config.with_residuals(Residuals())
    output: Tensor = Forward.apply(q, k, v, config)
    return output


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """Inside torch.autocast, what torch does to its own attention: everything but float64 to the lower precision."""
    device = tensors[0].device.type
    if hasattr(torch, "get_autocast_dtype"):
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    elif device == "cuda":
        enabled, dtype = torch.is_autocast_enabled(), torch.get_autocast_gpu_dtype()
    else:
        enabled, dtype = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    if not enabled:
        return list(tensors)
    return [t.to(dtype) if t.is_floating_point() and t.dtype != torch.float64 else t for t in tensors]


def _check(query: Tensor, key: Tensor, value: Tensor, least_rank: int) -> None:
    named: dict[str, Any] = {"query": query, "key": key, "value": value}
    for name, tensor in named.items():
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} has dtype {tensor.dtype}: only {', '.join(str(d) for d in DTYPES)} are computed")
        if tensor.dim() < least_rank:
            raise ValueError(f"{name} has shape {list(tensor.shape)}: at least {least_rank} axes are needed")
    if not query.dtype == key.dtype == value.dtype:
        raise TypeError(f"query is {query.dtype}, key {key.dtype} and value {value.dtype}: they must be the same")
    if not query.device == key.device == value.device:
        raise ValueError(f"query is on {query.device}, key on {key.device} and value on {value.device}")


def _heads(tensor: Tensor) -> int:
    return tensor.shape[-3] if tensor.dim() >= 3 else 1


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that all of them expand to. torch.broadcast_shapes loads sympy, which takes seconds."""
    rank = max(len(shape) for shape in shapes)
    extents = []
    for axis in range(-rank, 0):
        extent = 1
        for shape in shapes:
            if -axis <= len(shape) and shape[axis] != 1:
                if extent not in (1, shape[axis]):
                    raise ValueError(f"leading axes {', '.join(str(list(s)) for s in shapes)} do not broadcast")
                extent = shape[axis]
        extents.append(extent)
    return tuple(extents)


def _four_axes(tensor: Tensor, leading: Sequence[int], heads: int) -> Tensor:
    if tensor.dim() == 2:
        tensor = tensor.unsqueeze(0)
    tensor = tensor.expand(*leading, heads, *tensor.shape[-2:])
    if len(leading) == 1:
        return tensor
    return tensor.flatten(0, len(leading) - 1) if leading else tensor.unsqueeze(0)


def _starts(cu_seqlens: Tensor | Sequence[int]) -> tuple[int, ...]:
    values = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens
    return tuple(int(value) for value in values)
