"""One primitive an operation, each with its tangent, transpose and batching rules and a host-callback lowering.

In the words of the design's mathematics, with w the cotangent of what a primitive gives:

    primitive                                  tangents                     transpose, by what it is linear in
    F    (q k v) -> o                          J
    J    (q k v; t) -> to                      by t: J; by q k v: K         by t: B at w
    B    (q k v do) -> dq dk dv                A; by do alone: B            by do: J at t=w
    H    (q k v do; u) -> gq gk gv gdo         by u: H                      by u: A at t=w
    A    (q k v do; t tdo) -> tdq tdk tdv      by t, tdo: A                 by t, tdo: H at u=w
    K    (q k v; t; s) -> second tangent of o                               by s: H at do=w, u=t; by t: H at do=w, u=s

K has no value (the service computes no forward over forward), but its transposes have: so the gradient of a jvp works.
The Hessian is symmetric, which makes H and A each other's transposes. What the table does not have raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad, batching, mlir

from flashbob._calls import compute_call
from flashbob.client import Client
from flashbob.errors import UnsupportedProblemError
from flashbob.problem import Problem

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Config:
    """What a call is besides its arrays. Equal for the same client and problem, so that traces are shared."""

    client: Client
    problem: Problem

    def repeated(self, times: int) -> Config:
        """The same for `times` batches put one after the other."""
        return replace(
            self,
            problem=replace(
                self.problem,
                cu_seqlens_q=_repeat(self.problem.cu_seqlens_q, times),
                cu_seqlens_k=_repeat(self.problem.cu_seqlens_k, times),
            ),
        )


def _repeat(starts: tuple[int, ...], times: int) -> tuple[int, ...]:
    if not starts:
        return ()
    return (0, *(start + i * starts[-1] for i in range(times) for start in starts[1:]))


@dataclass(frozen=True)
class Kind:
    """A primitive's place in the contract.

    Attributes:
        operation: of the service; empty for K.
        plain: names of the inputs that are always given and have no probe axis.
        linear: names of the inputs that may be left out and lead with the probe axis.
        outputs: what it gives.
    """

    operation: str
    plain: tuple[str, ...]
    linear: tuple[str, ...]
    outputs: tuple[str, ...]


F = Kind("forward", ("q", "k", "v"), (), ("o",))
J = Kind("jvp", ("q", "k", "v"), ("tq", "tk", "tv"), ("to",))
B = Kind("backward", ("q", "k", "v", "do"), (), ("dq", "dk", "dv"))
H = Kind("double_backward", ("q", "k", "v", "do"), ("uq", "uk", "uv"), ("gq", "gk", "gv", "gdo"))
A = Kind("jvp", ("q", "k", "v", "do"), ("tq", "tk", "tv", "tdo"), ("tdq", "tdk", "tdv"))
K = Kind("", ("q", "k", "v"), ("tq", "tk", "tv", "sq", "sk", "sv"), ("to",))

# For each output or input, the input that it is shaped like; o and to have q's rows and v's width.
_LIKE = {"q": "q", "k": "k", "v": "v"}


def _shape_of(name: str, q: Any, k: Any, v: Any) -> tuple[int, ...]:
    if name[-1] in _LIKE:
        return tuple({"q": q, "k": k, "v": v}[name[-1]].shape)
    return (*q.shape[:-1], v.shape[-1])


def _output_avals(kind: Kind, arrays: Arrays, probes: int) -> list[Any]:
    q, k, v = arrays[:3]
    lead = (probes,) if probes else ()
    return [jax.core.ShapedArray((*lead, *_shape_of(name, q, k, v)), q.dtype) for name in kind.outputs]


def _names(kind: Kind, given: tuple[bool, ...]) -> tuple[str, ...]:
    return kind.plain + tuple(name for name, there in zip(kind.linear, given, strict=True) if there)


def _on_host(kind: Kind, given: tuple[bool, ...], probes: int, config: Config, *arrays: Any) -> list[Any]:
    inputs = dict(zip(_names(kind, given), (np.asarray(array) for array in arrays), strict=True))
    problem = replace(config.problem, probes=probes)
    reply = config.client.run(compute_call(kind.operation, problem, inputs, outputs=kind.outputs))
    return [reply.tensors[name] for name in kind.outputs]


def _refuse(what: str) -> UnsupportedProblemError:
    return UnsupportedProblemError(
        f"{what} is not served: FlashBoB computes first and second derivatives, and the third only by what a second "
        "derivative is linear in"
    )


_FORWARD_OVER_FORWARD = "the second derivative in forward mode over forward mode"


def _make(name: str, kind: Kind) -> Any:
    primitive = jax.extend.core.Primitive("flashbob_" + name)
    primitive.multiple_results = True

    def abstract(*arrays: Any, config: Config, given: tuple[bool, ...] = (), probes: int = 0) -> list[Any]:
        del config, given
        return _output_avals(kind, arrays, probes)

    def evaluate(*arrays: Any, config: Config, given: tuple[bool, ...] = (), probes: int = 0) -> list[Any]:
        if not kind.operation:
            raise _refuse(_FORWARD_OVER_FORWARD)
        device = next(iter(arrays[0].devices())) if hasattr(arrays[0], "devices") else None
        return [jax.device_put(array, device) for array in _on_host(kind, given, probes, config, *arrays)]

    def staged(*arrays: Any, config: Config, given: tuple[bool, ...] = (), probes: int = 0) -> Any:
        if not kind.operation:
            raise _refuse(_FORWARD_OVER_FORWARD)
        avals = _output_avals(kind, arrays, probes)
        shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        # The primitive has its own batching rule: the callback itself is never mapped.
        return jax.pure_callback(functools.partial(_on_host, kind, given, probes, config), shapes, *arrays)

    primitive.def_abstract_eval(abstract)
    primitive.def_impl(evaluate)
    mlir.register_lowering(primitive, mlir.lower_fun(staged, multiple_results=True))
    batching.primitive_batchers[primitive] = functools.partial(_batch, primitive, kind)
    return primitive


def _batch(
    primitive: Any,
    kind: Kind,
    arrays: Arrays,
    dims: Sequence[int | None],
    *,
    config: Config,
    given: tuple[bool, ...] = (),
    probes: int = 0,
) -> tuple[list[Any], list[int]]:
    size = next(a.shape[d] for a, d in zip(arrays, dims, strict=True) if d is not None)

    def in_front(array: Any, dim: int | None) -> Any:
        return jnp.moveaxis(array, dim, 0) if dim is not None else jnp.broadcast_to(array, (size, *array.shape))

    count = len(kind.plain)
    params = {"given": given, "probes": probes} if kind.linear else {}
    if kind.linear and all(dim is None for dim in dims[:count]):
        # Only what the primitive is linear in is mapped: that is what probes are for.
        mapped = [in_front(a, d) for a, d in zip(arrays[count:], dims[count:], strict=True)]
        if probes:
            mapped = [a.reshape(size * probes, *a.shape[2:]) for a in mapped]
        params["probes"] = size * max(probes, 1)
        outputs = primitive.bind(*arrays[:count], *mapped, config=config, **params)
        if probes:
            outputs = [o.reshape(size, probes, *o.shape[1:]) for o in outputs]
        return outputs, [0] * len(outputs)

    # Else the mapped axis joins the batch, behind the probes.
    folded = []
    for i, (array, dim) in enumerate(zip(arrays, dims, strict=True)):
        array = in_front(array, dim)
        if probes and i >= count:
            array = jnp.moveaxis(array, 0, 1)
            folded.append(array.reshape(array.shape[0], size * array.shape[2], *array.shape[3:]))
        else:
            folded.append(array.reshape(size * array.shape[1], *array.shape[2:]))
    outputs = primitive.bind(*folded, config=config.repeated(size), **params)
    if probes:
        return [o.reshape(probes, size, o.shape[1] // size, *o.shape[2:]) for o in outputs], [1] * len(outputs)
    return [o.reshape(size, o.shape[0] // size, *o.shape[1:]) for o in outputs], [0] * len(outputs)


forward_p = _make("forward", F)
jvp_p = _make("jvp", J)
backward_p = _make("backward", B)
double_backward_p = _make("double_backward", H)
jvp_of_backward_p = _make("jvp_of_backward", A)
second_jvp_p = _make("second_jvp", K)


def _is_zero(tangent: Any) -> bool:
    return type(tangent) is ad.Zero


def _bind_linear(primitive: Any, plain: Arrays, linear: Arrays, config: Config, probes: int) -> list[Any]:
    """Binds with those of the linear inputs that are not symbolic zeros (or None)."""
    given = tuple(array is not None and not _is_zero(array) for array in linear)
    arrays = [array for array, there in zip(linear, given, strict=True) if there]
    outputs: list[Any] = primitive.bind(*plain, *arrays, config=config, given=given, probes=probes)
    return outputs


def _spread(given: tuple[bool, ...], arrays: Arrays) -> list[Any]:
    """The linear inputs in their places, None where they are left out."""
    left = iter(arrays)
    return [next(left) if there else None for there in given]


def _forward_jvp(primals: Arrays, tangents: Arrays, *, config: Config) -> tuple[Any, Any]:
    return forward_p.bind(*primals, config=config), _bind_linear(jvp_p, primals, tangents, config, 0)


def _backward_jvp(primals: Arrays, tangents: Arrays, *, config: Config) -> tuple[Any, Any]:
    outputs = backward_p.bind(*primals, config=config)
    if all(_is_zero(t) for t in tangents[:3]):
        return outputs, backward_p.bind(*primals[:3], tangents[3], config=config)
    return outputs, _bind_linear(jvp_of_backward_p, primals, tangents, config, 0)


def _jvp_jvp(
    primals: Arrays, tangents: Arrays, *, config: Config, given: tuple[bool, ...], probes: int
) -> tuple[Any, Any]:
    outputs = jvp_p.bind(*primals, config=config, given=given, probes=probes)
    parts = []
    if not all(_is_zero(t) for t in tangents[3:]):
        parts.append(_bind_linear(jvp_p, primals[:3], _spread(given, tangents[3:]), config, probes))
    if not all(_is_zero(t) for t in tangents[:3]):
        along = [None if _is_zero(t) else _with_probes(t, probes) for t in tangents[:3]]
        second = [*_spread(given, primals[3:]), *along]
        parts.append(_bind_linear(second_jvp_p, primals[:3], second, config, probes))
    return outputs, [functools.reduce(ad.add_jaxvals, part) for part in zip(*parts, strict=True)]


def _with_probes(array: Any, probes: int) -> Any:
    return jnp.broadcast_to(array, (probes, *array.shape)) if probes else array


def _linear_jvp(primitive: Any, count: int, what: str) -> Callable[..., tuple[Any, Any]]:
    """Tangents by the linear inputs only; by the first `count`, refused."""

    def rule(
        primals: Arrays, tangents: Arrays, *, config: Config, given: tuple[bool, ...], probes: int
    ) -> tuple[Any, Any]:
        if not all(_is_zero(t) for t in tangents[:count]):
            raise _refuse(what)
        outputs = primitive.bind(*primals, config=config, given=given, probes=probes)
        spread = _spread(given, tangents[count:])
        return outputs, _bind_linear(primitive, primals[:count], spread, config, probes)

    return rule


def _split(given: tuple[bool, ...], count: int, arrays: Arrays) -> tuple[Arrays, list[Any], list[bool]]:
    """(plain inputs, linear ones in their places, which of those are the unknowns of a transpose)."""
    linear = _spread(given, arrays[count:])
    return arrays[:count], linear, [ad.is_undefined_primal(array) for array in linear]


def _place(unknown: Sequence[bool], given: tuple[bool, ...], cotangents: Arrays, count: int) -> list[Any]:
    """Cotangents in the order of the inputs: None for the plain and the known ones."""
    linear = [c if there else None for c, there in zip(cotangents, unknown, strict=True)]
    return [None] * count + [c for c, there in zip(linear, given, strict=True) if there]


def _jvp_transpose(cotangents: Arrays, *arrays: Any, config: Config, given: tuple[bool, ...], probes: int) -> list[Any]:
    (q, k, v), _, unknown = _split(given, 3, arrays)
    w = cotangents[0]
    if _is_zero(w):
        return [None] * len(arrays)
    if probes:
        # Cotangents of o have no probe axis: probes become batches.
        q, k, v = (_fold_probes(_with_probes(a, probes)) for a in (q, k, v))
        gradients = backward_p.bind(q, k, v, _fold_probes(w), config=config.repeated(probes))
        gradients = [_unfold_probes(g, probes) for g in gradients]
    else:
        gradients = backward_p.bind(q, k, v, w, config=config)
    return _place(unknown, given, gradients, 3)


def _fold_probes(array: Any) -> Any:
    return array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])


def _unfold_probes(array: Any, probes: int) -> Any:
    return array.reshape(probes, array.shape[0] // probes, *array.shape[1:])


def _backward_transpose(cotangents: Arrays, q: Any, k: Any, v: Any, do: Any, *, config: Config) -> list[Any]:
    if not ad.is_undefined_primal(do) or any(ad.is_undefined_primal(array) for array in (q, k, v)):
        raise _refuse("the transpose of a backward pass by anything but do")
    if all(_is_zero(w) for w in cotangents):
        return [None] * 4
    return [None, None, None, *_bind_linear(jvp_p, (q, k, v), cotangents, config, 0)]


def _double_backward_transpose(
    cotangents: Arrays, *arrays: Any, config: Config, given: tuple[bool, ...], probes: int
) -> list[Any]:
    plain, _, unknown = _split(given, 4, arrays)
    if all(_is_zero(w) for w in cotangents):
        return [None] * len(arrays)
    gradients = _bind_linear(jvp_of_backward_p, plain, cotangents, config, probes)
    return _place(unknown, given, gradients, 4)


def _jvp_of_backward_transpose(
    cotangents: Arrays, *arrays: Any, config: Config, given: tuple[bool, ...], probes: int
) -> list[Any]:
    plain, _, unknown = _split(given, 4, arrays)
    if all(_is_zero(w) for w in cotangents):
        return [None] * len(arrays)
    gradients = _bind_linear(double_backward_p, plain, cotangents, config, probes)
    return _place(unknown, given, gradients, 4)


def _second_jvp_transpose(
    cotangents: Arrays, *arrays: Any, config: Config, given: tuple[bool, ...], probes: int
) -> list[Any]:
    (q, k, v), linear, unknown = _split(given, 3, arrays)
    w = cotangents[0]
    if _is_zero(w):
        return [None] * len(arrays)
    if any(unknown[:3]) and any(unknown[3:]):
        raise _refuse(_FORWARD_OVER_FORWARD)
    known = linear[3:] if any(unknown[:3]) else linear[:3]
    if probes:
        q, k, v = (_fold_probes(_with_probes(a, probes)) for a in (q, k, v))
        folded = [None if a is None else _fold_probes(a) for a in known]
        outputs = _bind_linear(double_backward_p, (q, k, v, _fold_probes(w)), folded, config.repeated(probes), 0)
        gradients = [_unfold_probes(g, probes) for g in outputs[:3]]
    else:
        gradients = _bind_linear(double_backward_p, (q, k, v, w), known, config, 0)[:3]
    return _place(unknown, given, [*gradients, *gradients], 3)


ad.primitive_jvps[forward_p] = _forward_jvp
ad.primitive_jvps[jvp_p] = _jvp_jvp
ad.primitive_jvps[backward_p] = _backward_jvp
ad.primitive_jvps[double_backward_p] = _linear_jvp(double_backward_p, 4, "the third derivative of attention")
ad.primitive_jvps[jvp_of_backward_p] = _linear_jvp(jvp_of_backward_p, 4, "the third derivative of attention")
ad.primitive_jvps[second_jvp_p] = _linear_jvp(second_jvp_p, 3, "the third derivative of attention")
ad.primitive_transposes[jvp_p] = _jvp_transpose
ad.primitive_transposes[backward_p] = _backward_transpose
ad.primitive_transposes[double_backward_p] = _double_backward_transpose
ad.primitive_transposes[jvp_of_backward_p] = _jvp_of_backward_transpose
ad.primitive_transposes[second_jvp_p] = _second_jvp_transpose
