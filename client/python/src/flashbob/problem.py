"""What to compute: the attention problem, the operations and their tensors, in the words of the contract."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from flashbob.v1 import problem_pb2, tensor_pb2

Layout = Literal["BHND", "BNHD", "THD"]
Alignment = Literal["top-left", "bottom-right"]

_LAYOUTS = {
    "BHND": tensor_pb2.LAYOUT_BHND,
    "BNHD": tensor_pb2.LAYOUT_BNHD,
    "THD": tensor_pb2.LAYOUT_THD,
}
_ALIGNMENTS = {
    "top-left": problem_pb2.MASK_ALIGNMENT_TOP_LEFT,
    "bottom-right": problem_pb2.MASK_ALIGNMENT_BOTTOM_RIGHT,
}
_OPERATIONS = {
    "forward": problem_pb2.OPERATION_FORWARD,
    "backward": problem_pb2.OPERATION_BACKWARD,
    "double_backward": problem_pb2.OPERATION_DOUBLE_BACKWARD,
    "jvp": problem_pb2.OPERATION_JVP,
}
_NAMES = {
    name.removeprefix("TENSOR_NAME_").lower(): number
    for name, number in tensor_pb2.TensorName.items()
    if number != tensor_pb2.TENSOR_NAME_UNSPECIFIED
}
_NAME_OF = {number: name for name, number in _NAMES.items()}

# Tensors that lead with a probe axis where the problem has one.
PROBED = frozenset("uq uk uv tq tk tv tdo gq gk gv gdo to tlse tdq tdk tdv".split())


@dataclass(frozen=True)
class Problem:
    """Everything about one attention problem that the shapes of q, k and v do not say.

    Key `j` is visible to query `i` when `i + s - left <= j <= i + s + right`, with `s = 0` (top-left) or
    `N_k - N_q` (bottom-right).

    Attributes:
        layout: order of the axes: [B, H, N, D], [B, N, H, D], or packed sequences [T, H, D].
        window: (left, right), keys to either side of the diagonal; -1 leaves a side open. Causal is right = 0.
        alignment: which corner the diagonal starts from.
        scale: of the softmax; None for 1 / sqrt(head dim).
        probes: P >= 1 gives the u's, t's and all outputs made of them a leading axis of P; 0 for none.
        cu_seqlens_q: packed only: the B + 1 positions where query sequences begin, the last the total.
        cu_seqlens_k: the same for the keys.
        deterministic: the same bits from run to run.
        allow_tf32: fp32 factors may be rounded to TF32.
    """

    layout: Layout = "BHND"
    window: tuple[int, int] = (-1, -1)
    alignment: Alignment = "top-left"
    scale: float | None = None
    probes: int = 0
    cu_seqlens_q: tuple[int, ...] = ()
    cu_seqlens_k: tuple[int, ...] = ()
    deterministic: bool = False
    allow_tf32: bool = False

    def __post_init__(self) -> None:
        """Refuses what has no place in the contract, before anything is sent."""
        if self.layout not in _LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is none of {', '.join(_LAYOUTS)}")
        if self.alignment not in _ALIGNMENTS:
            raise ValueError(f"alignment {self.alignment!r} is none of {', '.join(_ALIGNMENTS)}")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ValueError(f"scale {self.scale} is not finite")
        if min(self.window) < -1:
            raise ValueError(f"window {self.window} has a side below -1")

    def to_proto(self) -> problem_pb2.Problem:
        """The contract's message."""
        message = problem_pb2.Problem(
            layout=_LAYOUTS[self.layout],
            probes=self.probes,
            cu_seqlens_q=self.cu_seqlens_q,
            cu_seqlens_k=self.cu_seqlens_k,
            deterministic=self.deterministic,
            fp32_precision=problem_pb2.FP32_PRECISION_ALLOW_TF32
            if self.allow_tf32
            else problem_pb2.FP32_PRECISION_IEEE,
        )
        if self.window != (-1, -1):
            message.mask.left, message.mask.right = self.window
            message.mask.alignment = _ALIGNMENTS[self.alignment]
        if self.scale is not None:
            message.scale = self.scale
        return message


def make_problem(
    *,
    layout: Layout = "BHND",
    causal: bool | Alignment = False,
    window: tuple[int, int] | None = None,
    alignment: Alignment = "top-left",
    scale: float | None = None,
    probes: int = 0,
    cu_seqlens_q: Sequence[int] | None = None,
    cu_seqlens_k: Sequence[int] | None = None,
    deterministic: bool = False,
    allow_tf32: bool = False,
) -> Problem:
    """A `Problem` from the words that callers use: `causal` closes the right side, and may name the alignment."""
    left, right = window if window is not None else (-1, -1)
    if isinstance(causal, str):
        alignment, causal = causal, True
    if causal:
        right = 0
    if (cu_seqlens_q is None) != (cu_seqlens_k is None):
        raise ValueError("cu_seqlens_q and cu_seqlens_k come together: one was given without the other")
    if cu_seqlens_q is not None:
        layout = "THD"
    return Problem(
        layout=layout,
        window=(int(left), int(right)),
        alignment=alignment,
        scale=None if scale is None else float(scale),
        probes=probes,
        cu_seqlens_q=tuple(int(x) for x in cu_seqlens_q) if cu_seqlens_q is not None else (),
        cu_seqlens_k=tuple(int(x) for x in cu_seqlens_k) if cu_seqlens_k is not None else (),
        deterministic=deterministic,
        allow_tf32=allow_tf32,
    )


def operation_number(operation: str) -> problem_pb2.Operation:
    """The contract's number of an operation."""
    try:
        return _OPERATIONS[operation]
    except KeyError:
        raise ValueError(f"operation {operation!r} is none of {', '.join(_OPERATIONS)}") from None


def tensor_number(name: str) -> tensor_pb2.TensorName:
    """The contract's number of a tensor."""
    try:
        return cast("tensor_pb2.TensorName", _NAMES[name])
    except KeyError:
        raise ValueError(f"tensor {name!r} is none of {', '.join(_NAMES)}") from None


def tensor_name(number: int) -> str:
    """The name of one of the contract's tensors."""
    return _NAME_OF.get(number, f"tensor_{number}")


def outputs_of(operation: str, inputs: Collection[str]) -> tuple[str, ...]:
    """Every output that an operation gives from these inputs, in the contract's order."""
    if operation == "forward":
        return ("o", "lse")
    if operation == "backward":
        return ("dq", "dk", "dv")
    if operation == "double_backward":
        return ("gq", "gk", "gv", "gdo")
    return ("to", "tlse", "tdq", "tdk", "tdv") if "do" in inputs else ("to", "tlse")


__all__ = [
    "PROBED",
    "Alignment",
    "Layout",
    "Problem",
    "make_problem",
    "operation_number",
    "outputs_of",
    "tensor_name",
    "tensor_number",
]
