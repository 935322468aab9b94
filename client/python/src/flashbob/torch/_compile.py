"""Attention under torch.compile: two opaque operators with fake tensors, the second the gradient of the first.

torch differentiates a compiled graph once, so the gradient operator has no gradient of its own. An operator's arguments
are tensors and numbers: the client travels as its key in a table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashbob._default import default_client
from flashbob.client import Client, client_of_key
from flashbob.problem import Alignment
from flashbob.torch._bridge import Config, run

# torch.library.custom_op came with torch 2.4.
AVAILABLE = hasattr(torch.library, "custom_op")


def is_compiling() -> bool:
    """Whether torch.compile or torch.export is tracing."""
    return AVAILABLE and torch.compiler.is_compiling()


def _config(scale: float | None, left: int, right: int, bottom_right: bool, allow_tf32: bool, client: int) -> Config:
    return Config(
        client=client_of_key(client) if client else default_client(),
        window=(left, right),
        alignment="bottom-right" if bottom_right else "top-left",
        scale=scale,
        allow_tf32=allow_tf32,
    )


if AVAILABLE:

    @torch.library.custom_op("flashbob::attention", mutates_args=())
    def _attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float | None,
        left: int,
        right: int,
        bottom_right: bool,
        allow_tf32: bool,
        client: int,
    ) -> Tensor:
        config = _config(scale, left, right, bottom_right, allow_tf32, client)
        return run("forward", config, 0, {"q": q, "k": k, "v": v}, ("o",))[0].contiguous()

    @_attention.register_fake
    def _(q: Tensor, k: Tensor, v: Tensor, *options: Any) -> Tensor:
        return q.new_empty(*q.shape[:-1], v.shape[-1])

    @torch.library.custom_op("flashbob::attention_backward", mutates_args=())
    def _attention_backward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        scale: float | None,
        left: int,
        right: int,
        bottom_right: bool,
        allow_tf32: bool,
        client: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = _config(scale, left, right, bottom_right, allow_tf32, client)
        dq, dk, dv = run("backward", config, 0, {"q": q, "k": k, "v": v, "do": do}, ("dq", "dk", "dv"))
        return dq.contiguous(), dk.contiguous(), dv.contiguous()

    @_attention_backward.register_fake
    def _(q: Tensor, k: Tensor, v: Tensor, do: Tensor, *options: Any) -> tuple[Tensor, Tensor, Tensor]:
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        q, k, v, *ctx.options = inputs
        ctx.save_for_backward(q, k, v)

    def _backward(ctx: Any, do: Tensor) -> tuple[Tensor | None, ...]:
        gradients = _attention_backward(*ctx.saved_tensors, do, *ctx.options)
        return (*gradients, None, None, None, None, None, None)

    _attention.register_autograd(_backward, setup_context=_setup_context)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None,
    left: int,
    right: int,
    alignment: Alignment,
    allow_tf32: bool,
    client: Client | None,
) -> Tensor:
    """Attention as one operator of a compiled graph."""
    key = client.key if client is not None else 0
    output: Tensor = _attention(q, k, v, scale, left, right, alignment == "bottom-right", allow_tf32, key)
    return output
