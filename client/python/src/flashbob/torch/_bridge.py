"""Between torch's tensors and the wire: no copies where strides allow, outputs straight into torch's memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashbob._retry import RetryPolicy
from flashbob._tensors import HostTensor
from flashbob._wire import Allocate, ComputeCall
from flashbob.client import Client
from flashbob.errors import HandleNotFoundError, OverloadedError
from flashbob.handles import Stored
from flashbob.problem import Alignment, Layout, Problem

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}
_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}


class Residuals:
    """What one forward call left on the server: q, k, v, o and lse, and later do.

    Belongs to the graph: when its last node dies, so do the handles. Filled and used by the thread that runs that node;
    torch runs one node of a graph at a time.
    """

    def __init__(self) -> None:
        self.layout: Layout = "BHND"
        self.stored: dict[str, Stored] = {}
        # Whether a second derivative may follow, so that do is worth leaving there too.
        self.with_cotangent = False
        self._cotangent: Tensor | None = None

    def clear(self) -> None:
        """Lets go of everything: the server lost it."""
        self.stored.clear()
        self._cotangent = None

    def keep_cotangent(self, do: Tensor, stored: Stored) -> None:
        """Remembers that the server has this `do`."""
        self.stored["do"] = stored
        # Detached: the cotangent's own graph leads back to the node that owns this object.
        self._cotangent = do.detach()

    def has_cotangent(self, do: Tensor) -> bool:
        """Whether `do` is the very tensor that the server has: same memory, same version."""
        known = self._cotangent
        return (
            known is not None
            and known.data_ptr() == do.data_ptr()
            and known.stride() == do.stride()
            and known._version == do._version
        )


@dataclass(frozen=True, eq=False)
class Config:
    """What a call is besides its tensors. The tensors are [B, H, N, D], or packed [T, H, D]."""

    client: Client
    window: tuple[int, int] = (-1, -1)
    alignment: Alignment = "top-left"
    scale: float | None = None
    cu_seqlens_q: tuple[int, ...] = ()
    cu_seqlens_k: tuple[int, ...] = ()
    allow_tf32: bool = False
    residuals: Residuals | None = None

    @property
    def packed(self) -> bool:
        """Whether sequences are packed one after the other."""
        return bool(self.cu_seqlens_q)

    @property
    def rank(self) -> int:
        """Axes of a tensor without a probe axis."""
        return 3 if self.packed else 4

    def with_residuals(self, residuals: Residuals) -> Config:
        """The same, leaving tensors on the server between the passes."""
        return replace(self, residuals=residuals)

    def repeated(self, times: int) -> Config:
        """The same for `times` batches put one after the other, which the server has nothing of."""
        return replace(
            self,
            cu_seqlens_q=_repeat(self.cu_seqlens_q, times),
            cu_seqlens_k=_repeat(self.cu_seqlens_k, times),
            residuals=None,
        )

    def problem(self, layout: Layout, probes: int) -> Problem:
        """The contract's problem."""
        return Problem(
            layout="THD" if self.packed else layout,
            window=self.window,
            alignment=self.alignment,
            scale=self.scale,
            probes=probes,
            cu_seqlens_q=self.cu_seqlens_q,
            cu_seqlens_k=self.cu_seqlens_k,
            allow_tf32=self.allow_tf32,
        )


def _repeat(starts: tuple[int, ...], times: int) -> tuple[int, ...]:
    if not starts:
        return ()
    total = starts[-1]
    return (0, *(start + i * total for i in range(times) for start in starts[1:]))


def _wire_layout(config: Config, tensors: list[Tensor]) -> Layout:
    """BNHD where that is how all of q, k and v lie, as after a transpose of heads and rows; else BHND."""
    if config.packed:
        return "THD"
    if all(t.transpose(1, 2).is_contiguous() for t in tensors) and not all(t.is_contiguous() for t in tensors):
        return "BNHD"
    return "BHND"


def to_host(tensor: Tensor, layout: Layout) -> HostTensor:
    """A tensor as the wire sees it; copied only from another device or where its strides are neither layout's."""
    tensor = tensor.detach()
    if layout == "BNHD":
        tensor = tensor.transpose(-3, -2)
    tensor = tensor.to("cpu").contiguous()
    return HostTensor(DTYPES[tensor.dtype], tuple(tensor.shape), _bytes(tensor))


def _bytes(tensor: Tensor) -> memoryview:
    array: np.ndarray[Any, Any] = tensor.view(-1).view(torch.uint8).numpy()
    return array.data


def _allocate_on(device: torch.device) -> Allocate[Tensor]:
    def allocate(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[Tensor, memoryview]:
        del name
        tensor = torch.empty(shape, dtype=_TORCH_DTYPES[dtype], pin_memory=device.type == "cuda")
        return tensor, _bytes(tensor)

    return allocate


def _from_host(tensor: Tensor, layout: Layout, device: torch.device) -> Tensor:
    tensor = tensor.to(device)
    return tensor.transpose(-3, -2) if layout == "BNHD" else tensor


def run(
    operation: str, config: Config, probes: int, tensors: dict[str, Tensor | None], outputs: tuple[str, ...]
) -> tuple[Tensor, ...]:
    """Computes one operation on the server, with what it already has of the inputs."""
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    device = given["q"].device
    residuals = config.residuals
    kept = dict(residuals.stored) if residuals is not None else {}
    layout = residuals.layout if residuals is not None and kept else _wire_layout(config, [given[n] for n in "qkv"])
    if residuals is not None and "do" in kept and not ("do" in given and residuals.has_cotangent(given["do"])):
        del kept["do"]
    if (
        residuals is not None
        and kept
        and operation == "backward"
        and residuals.with_cotangent
        and torch.is_tensor(given.get("do"))
        and "do" not in kept
    ):
        do = given["do"]
        with contextlib.suppress(OverloadedError):
            kept.update(config.client.put({"do": to_host(do, layout)}, local={}, retry=_impatient(config.client)))
            residuals.keep_cotangent(do, kept["do"])

    inputs: dict[str, HostTensor | Stored] = {}
    for name, tensor in given.items():
        stored = kept.get(name)
        inputs[name] = to_host(tensor, layout) if stored is None else stored.with_local(_again(tensor, layout))
    if "o" in kept and "lse" in kept:
        inputs["o"], inputs["lse"] = kept["o"], kept["lse"]
    call = ComputeCall(operation, config.problem(layout, probes), inputs, outputs)
    reply = config.client.run_into(call, _allocate_on(device))
    if reply.resent and residuals is not None:
        residuals.clear()
    return tuple(_from_host(reply.tensors[name], layout, device) for name in outputs)


def _impatient(client: Client) -> RetryPolicy:
    """Where the quota is full it is full of living graphs' tensors: waiting for it would not end."""
    return replace(client.retry, wait_for_quota=False)


def run_forward_and_keep(config: Config, residuals: Residuals, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The forward pass, leaving q, k, v, o and lse on the server; nothing, where there is no room for them."""
    try:
        return _forward_and_keep(config, residuals, q, k, v)
    except OverloadedError:
        residuals.clear()
        return run("forward", config, 0, {"q": q, "k": k, "v": v}, ("o",))[0]


def _forward_and_keep(config: Config, residuals: Residuals, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    client = config.client
    residuals.layout = layout = _wire_layout(config, [q, k, v])
    hosts = {name: to_host(tensor, layout) for name, tensor in (("q", q), ("k", k), ("v", v))}
    allocate = _allocate_on(q.device)
    while True:
        # Without local copies of their own: every later call has q, k and v at hand.
        stored = client.put(hosts, local={}, retry=_impatient(client))
        inputs = {name: tensor.with_local(_constant(hosts[name])) for name, tensor in stored.items()}
        call = ComputeCall("forward", config.problem(layout, 0), inputs, ("o", "lse"), keep=frozenset({"o", "lse"}))
        reply = client.run_into(call, allocate, retry=_impatient(client))
        kept = {name: client.keep(name, output) for name, output in reply.kept.items()}
        try:
            (o,) = client.fetch([kept["o"].handle], allocate)
        except HandleNotFoundError:
            # The server restarted between the two calls.
            continue
        residuals.stored = kept if reply.resent else {**stored, **kept}
        return _from_host(o, layout, q.device)


def _constant(host: HostTensor) -> Callable[[], HostTensor]:
    return lambda: host


def _again(tensor: Tensor, layout: Layout) -> Callable[[], HostTensor]:
    return lambda: to_host(tensor, layout)
