"""Existing models on FlashBoB: torch's own attention function, replaced while a block runs."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional
from torch import Tensor

from flashbob.client import Client
from flashbob.errors import UnsupportedProblemError
from flashbob.problem import Alignment
from flashbob.torch._attention import ResidualPolicy, scaled_dot_product_attention
from flashbob.torch._bridge import DTYPES


@contextlib.contextmanager
def patch(
    *,
    window: tuple[int, int] | None = None,
    causal_alignment: Alignment = "top-left",
    allow_tf32: bool = False,
    residuals: ResidualPolicy = "auto",
    client: Client | None = None,
) -> Iterator[None]:
    """Replaces `torch.nn.functional.scaled_dot_product_attention` while the block runs, in all threads.

    What is not served (attn_mask, dropout, other dtypes, a head dim that the server does not take) falls back to
    torch's own function, with one warning a block. The arguments are `scaled_dot_product_attention`'s. Code that
    imported the function by name before keeps torch's.
    """
    original = torch.nn.functional.scaled_dot_product_attention
    warned = False

    def fall_back(why: str, *args: Any, **kwargs: Any) -> Tensor:
        nonlocal warned
        if not warned:
            warned = True
            warnings.warn(
                f"flashbob.torch.patch: {why}; this call and others like it use torch's own attention", stacklevel=3
            )
        result: Tensor = original(*args, **kwargs)
        return result

    @functools.wraps(original)
    def patched(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        arguments = (query, key, value, attn_mask, dropout_p, is_causal)
        # enable_gqa is younger than the function: passed on only where it says something.
        rest: dict[str, Any] = {"scale": scale, **({"enable_gqa": True} if enable_gqa else {})}
        if attn_mask is not None:
            return fall_back("attn_mask is not served", *arguments, **rest)
        if dropout_p != 0.0:
            return fall_back("dropout is not served", *arguments, **rest)
        if query.dtype not in DTYPES:
            return fall_back(f"{query.dtype} is not served", *arguments, **rest)
        try:
            return scaled_dot_product_attention(
                *arguments,
                scale,
                enable_gqa,
                window=window,
                causal_alignment=causal_alignment,
                allow_tf32=allow_tf32,
                residuals=residuals,
                client=client,
            )
        except UnsupportedProblemError as error:
            return fall_back(str(error), *arguments, **rest)

    torch.nn.functional.scaled_dot_product_attention = patched
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
