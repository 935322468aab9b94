"""The four operations on numpy arrays, as calls to make: what the blocking and the asyncio client have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from flashbob._tensors import HostTensor, from_numpy
from flashbob._wire import ComputeCall, Reply
from flashbob.handles import Stored
from flashbob.problem import Alignment, Layout, Problem, make_problem

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = Any  # a numpy array; bfloat16 arrays are of ml_dtypes' type, which numpy's own types do not name
Input = Any  # an Array or a Stored


class ProblemOptions(TypedDict, total=False):
    """The keyword arguments of every operation that describe the problem; see `flashbob.problem.make_problem`."""

    layout: Layout
    causal: bool | Alignment
    window: tuple[int, int] | None
    alignment: Alignment
    scale: float | None
    probes: int
    cu_seqlens_q: Sequence[int] | None
    cu_seqlens_k: Sequence[int] | None
    deterministic: bool
    allow_tf32: bool


class Forward(NamedTuple):
    """Output and log-sum-exp of each row."""

    o: Array
    lse: Array


class Backward(NamedTuple):
    """Gradients of <do, o>."""

    dq: Array
    dk: Array
    dv: Array


class DoubleBackward(NamedTuple):
    """Gradients of <uq, dq> + <uk, dk> + <uv, dv>."""

    gq: Array
    gk: Array
    gv: Array
    gdo: Array


class Jvp(NamedTuple):
    """Tangents of the output and log-sum-exp and, where `do` was given, of the gradients."""

    to: Array
    tlse: Array
    tdq: Array | None = None
    tdk: Array | None = None
    tdv: Array | None = None


def compute_call(
    operation: str,
    problem: Problem,
    inputs: Mapping[str, Input | None],
    *,
    outputs: Sequence[str] = (),
    keep: Iterable[str] = (),
    lease_seconds: int = 0,
) -> ComputeCall:
    """A call on numpy arrays, stored tensors and tensors of the wire; inputs that are None are left out."""
    tensors: dict[str, HostTensor | Stored] = {}
    for name, value in inputs.items():
        if isinstance(value, (HostTensor, Stored)):
            tensors[name] = value
        elif value is not None:
            tensors[name] = from_numpy(name, value)
    return ComputeCall(operation, problem, tensors, tuple(outputs), frozenset(keep), lease_seconds)


def forward_call(q: Input, k: Input, v: Input, options: ProblemOptions) -> ComputeCall:
    """FORWARD."""
    return compute_call("forward", make_problem(**options), {"q": q, "k": k, "v": v})


def backward_call(
    q: Input, k: Input, v: Input, do: Input, o: Input | None, lse: Input | None, options: ProblemOptions
) -> ComputeCall:
    """BACKWARD."""
    inputs = {"q": q, "k": k, "v": v, "do": do, "o": o, "lse": lse}
    return compute_call("backward", make_problem(**options), inputs)


def double_backward_call(
    q: Input,
    k: Input,
    v: Input,
    do: Input,
    uq: Input | None,
    uk: Input | None,
    uv: Input | None,
    o: Input | None,
    lse: Input | None,
    options: ProblemOptions,
) -> ComputeCall:
    """DOUBLE_BACKWARD."""
    inputs = {"q": q, "k": k, "v": v, "do": do, "uq": uq, "uk": uk, "uv": uv, "o": o, "lse": lse}
    return compute_call("double_backward", make_problem(**options), inputs)


def jvp_call(
    q: Input,
    k: Input,
    v: Input,
    tq: Input | None,
    tk: Input | None,
    tv: Input | None,
    do: Input | None,
    tdo: Input | None,
    o: Input | None,
    lse: Input | None,
    options: ProblemOptions,
) -> ComputeCall:
    """JVP, with `do` also that of the gradients."""
    inputs = {"q": q, "k": k, "v": v, "tq": tq, "tk": tk, "tv": tv, "do": do, "tdo": tdo, "o": o, "lse": lse}
    return compute_call("jvp", make_problem(**options), inputs)


def as_forward(reply: Reply[Array]) -> Forward:
    """The outputs of FORWARD."""
    return Forward(**reply.tensors)


def as_backward(reply: Reply[Array]) -> Backward:
    """The outputs of BACKWARD."""
    return Backward(**reply.tensors)


def as_double_backward(reply: Reply[Array]) -> DoubleBackward:
    """The outputs of DOUBLE_BACKWARD."""
    return DoubleBackward(**reply.tensors)


def as_jvp(reply: Reply[Array]) -> Jvp:
    """The outputs of JVP."""
    return Jvp(**reply.tensors)


__all__ = ["Array", "Input", "ProblemOptions", "Unpack"]
