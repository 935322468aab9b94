"""Attention's five maps as autograd functions, each differentiable by the others.

With F: (q, k, v) -> o, and in the words of the design's mathematics:

    map                                        gradient (reverse)                      tangent (forward)
    F    (q k v) -> o                          B                                       J
    B    (q k v do) -> dq dk dv                H                                       A
    J    (q k v; t) -> to, linear in t         by t: B at w; by q k v: H at do=w, u=t  by t: J
    H    (q k v do; u) -> gq gk gv gdo         by u: A at t=w                          by u: H
    A    (q k v do; t tdo) -> tdq tdk tdv      by t, tdo: H at u=w                     by t, tdo: A

H and A are each other's transposes, since the Hessian is symmetric. The derivatives of J by q, k, v along a tangent,
and of H and A by q, k, v, do, are of third order or forward over forward: refused, never silently zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashbob.errors import UnsupportedProblemError
from flashbob.torch._bridge import Config, run, run_forward_and_keep

# torch 1.13 has neither setup_context nor torch.func.
_HAS_SETUP_CONTEXT = hasattr(torch.autograd.Function, "setup_context")

MaybeTensor = Tensor | None


def _differentiable(function: Any) -> Any:
    """Lets a Function written with setup_context run on a torch that has only forward(ctx, ...)."""
    if not _HAS_SETUP_CONTEXT:
        plain, setup = function.forward, function.setup_context

        def forward(ctx: Any, *arguments: Any) -> Any:
            output = plain(*arguments)
            setup(ctx, arguments, output)
            return output

        function.forward = staticmethod(forward)
    return function


def _save(ctx: Any, *tensors: MaybeTensor) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)
    if hasattr(ctx, "save_for_forward"):
        ctx.save_for_forward(*tensors)


def _refuse(what: str) -> UnsupportedProblemError:
    return UnsupportedProblemError(
        f"{what} is not served: FlashBoB computes first and second derivatives, and the third only by what a second "
        "derivative is linear in"
    )


def _refuse_tangents(what: str, *tangents: MaybeTensor) -> None:
    if any(tangent is not None for tangent in tangents):
        raise _refuse(what)


def _refuse_gradients(ctx: Any, count: int, what: str) -> None:
    """Refuses where the gradient by one of the first `count` inputs is asked for."""
    for position in range(count):
        if ctx.needs_input_grad[position] and _is_wanted(ctx, position):
            raise _refuse(what)


def _is_wanted(ctx: Any, position: int) -> bool:
    """Whether the running backward pass uses the gradient by this input: `autograd.grad` names what it wants."""
    try:
        node = ctx.next_functions[position][0]
        return node is None or bool(torch._C._will_engine_execute_node(node))
    except (AttributeError, IndexError, RuntimeError):
        return True


def _fold(tensor: MaybeTensor, dim: int | None, size: int, probe_axis: bool) -> MaybeTensor:
    """[V, P?, B, ...] to [P?, V * B, ...]: a mapped axis goes into the batch (packed: into the sequences)."""
    if tensor is None:
        return None
    tensor = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0).expand(size, *tensor.shape)
    if probe_axis:
        return tensor.movedim(0, 1).flatten(1, 2)
    return tensor.flatten(0, 1)


def _split(tensor: Tensor, axis: int, size: int) -> Tensor:
    shape = tensor.shape
    return tensor.reshape(*shape[:axis], size, shape[axis] // size, *shape[axis + 1 :])


def _unfold(tensor: Tensor, size: int, probe_axis: bool) -> tuple[Tensor, int]:
    """The reverse of `_fold`: the tensor and where its mapped axis is."""
    axis = 1 if probe_axis else 0
    return _split(tensor, axis, size), axis


def _fold_probes(tensor: MaybeTensor, dim: int | None, size: int, probes: int) -> MaybeTensor:
    """[V, P?, ...] to [V * P, ...]: a mapped axis goes into the probes."""
    if tensor is None:
        return None
    tensor = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0).expand(size, *tensor.shape)
    return tensor.flatten(0, 1) if probes else tensor


def _vmap(
    function: Any, info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...], plain: int, probed: int
) -> tuple[Any, Any]:
    """Maps a Function whose arguments are `plain` tensors, `probed` tensors, the config and, with those, the probes."""
    size = info.batch_size
    config: Config = arguments[plain + probed]
    probes: int = arguments[-1] if probed else 0
    tensors, dims = arguments[: plain + probed], in_dims[: plain + probed]
    if probed and all(dim is None for dim in dims[:plain]):
        mapped = [_fold_probes(t, d, size, probes) for t, d in zip(tensors[plain:], dims[plain:], strict=True)]
        outputs = function.apply(*tensors[:plain], *mapped, config, size * max(probes, 1))

        def back(tensor: Tensor) -> tuple[Tensor, int]:
            return (_split(tensor, 0, size) if probes else tensor), 0
    else:
        mapped = [
            _fold(t, d, size, bool(probes) and i >= plain) for i, (t, d) in enumerate(zip(tensors, dims, strict=True))
        ]
        rest = (config.repeated(size), probes) if probed else (config.repeated(size),)
        outputs = function.apply(*mapped, *rest)

        def back(tensor: Tensor) -> tuple[Tensor, int]:
            return _unfold(tensor, size, bool(probes))

    if torch.is_tensor(outputs):
        return back(outputs)
    pairs = [back(tensor) for tensor in outputs]
    return tuple(tensor for tensor, _ in pairs), tuple(dim for _, dim in pairs)


@_differentiable
class Forward(torch.autograd.Function):
    """F: q, k, v -> o."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, config: Config) -> Tensor:
        if config.residuals is not None:
            return run_forward_and_keep(config, config.residuals, q, k, v)
        return run("forward", config, 0, {"q": q, "k": k, "v": v}, ("o",))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, v, ctx.config = inputs
        _save(ctx, q, k, v)

    @staticmethod
    def backward(ctx: Any, do: MaybeTensor) -> tuple[MaybeTensor, ...]:
        if do is None:
            return (None,) * 4
        q, k, v = ctx.saved_tensors
        if ctx.config.residuals is not None and torch.is_grad_enabled():
            # A second derivative may follow: it is worth leaving do on the server.
            ctx.config.residuals.with_cotangent = True
        return (*Backward.apply(q, k, v, do, ctx.config), None)

    @staticmethod
    def jvp(ctx: Any, tq: MaybeTensor, tk: MaybeTensor, tv: MaybeTensor, _: None) -> Tensor:
        q, k, v = ctx.saved_tensors
        tangent: Tensor = Jvp.apply(q, k, v, tq, tk, tv, ctx.config, 0)
        return tangent

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return _vmap(Forward, info, in_dims, arguments, plain=3, probed=0)


@_differentiable
class Backward(torch.autograd.Function):
    """B: q, k, v, do -> dq, dk, dv."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, do: Tensor, config: Config) -> tuple[Tensor, ...]:
        return run("backward", config, 0, {"q": q, "k": k, "v": v, "do": do}, ("dq", "dk", "dv"))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        q, k, v, do, ctx.config = inputs
        _save(ctx, q, k, v, do)

    @staticmethod
    def backward(ctx: Any, uq: MaybeTensor, uk: MaybeTensor, uv: MaybeTensor) -> tuple[MaybeTensor, ...]:
        if uq is None and uk is None and uv is None:
            return (None,) * 5
        return (*DoubleBackward.apply(*ctx.saved_tensors, uq, uk, uv, ctx.config, 0), None)

    @staticmethod
    def jvp(
        ctx: Any, tq: MaybeTensor, tk: MaybeTensor, tv: MaybeTensor, tdo: MaybeTensor, _: None
    ) -> tuple[Tensor, ...]:
        tangents: tuple[Tensor, ...] = JvpOfBackward.apply(*ctx.saved_tensors, tq, tk, tv, tdo, ctx.config, 0)
        return tangents

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return _vmap(Backward, info, in_dims, arguments, plain=4, probed=0)


@_differentiable
class Jvp(torch.autograd.Function):
    """J: q, k, v; tq, tk, tv -> to."""

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, tq: MaybeTensor, tk: MaybeTensor, tv: MaybeTensor, config: Config, probes: int
    ) -> Tensor:
        tensors = {"q": q, "k": k, "v": v, "tq": tq, "tk": tk, "tv": tv}
        return run("jvp", config, probes, tensors, ("to",))[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.config, ctx.probes = inputs[6:]
        _save(ctx, *inputs[:6])

    @staticmethod
    def backward(ctx: Any, w: MaybeTensor) -> tuple[MaybeTensor, ...]:
        if w is None:
            return (None,) * 8
        q, k, v, *tangents = ctx.saved_tensors
        config, probes = ctx.config, ctx.probes
        if probes:
            # Cotangents of o have no probe axis: the probes become batches, and what they share is summed over.
            q, k, v = (_fold(t, None, probes, False) for t in (q, k, v))
            tangents = [_fold(t, 0, probes, False) for t in tangents]
            w = _fold(w, 0, probes, False)
            config = config.repeated(probes)
        by_tangent: list[MaybeTensor] = [None] * 3
        by_input: list[MaybeTensor] = [None] * 3
        if any(ctx.needs_input_grad[3:6]):
            gradients = Backward.apply(q, k, v, w, config)
            by_tangent = [g if t is not None else None for g, t in zip(gradients, tangents, strict=True)]
        if any(ctx.needs_input_grad[:3]):
            by_input = list(DoubleBackward.apply(q, k, v, w, *tangents, config, 0)[:3])
        if probes:
            by_tangent = [_unfold(g, probes, False)[0] if g is not None else None for g in by_tangent]
            by_input = [_unfold(g, probes, False)[0].sum(0) if g is not None else None for g in by_input]
        return (*by_input, *by_tangent, None, None)

    @staticmethod
    def jvp(
        ctx: Any,
        q: MaybeTensor,
        k: MaybeTensor,
        v: MaybeTensor,
        tq: MaybeTensor,
        tk: MaybeTensor,
        tv: MaybeTensor,
        *_: None,
    ) -> Tensor:
        _refuse_tangents("the second derivative in forward mode over forward mode", q, k, v)
        tangent: Tensor = Jvp.apply(*ctx.saved_tensors[:3], tq, tk, tv, ctx.config, ctx.probes)
        return tangent

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return _vmap(Jvp, info, in_dims, arguments, plain=3, probed=3)


@_differentiable
class DoubleBackward(torch.autograd.Function):
    """H: q, k, v, do; uq, uk, uv -> gq, gk, gv, gdo."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        uq: MaybeTensor,
        uk: MaybeTensor,
        uv: MaybeTensor,
        config: Config,
        probes: int,
    ) -> tuple[Tensor, ...]:
        tensors = {"q": q, "k": k, "v": v, "do": do, "uq": uq, "uk": uk, "uv": uv}
        return run("double_backward", config, probes, tensors, ("gq", "gk", "gv", "gdo"))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.config, ctx.probes = inputs[7:]
        ctx.given = [u is not None for u in inputs[4:7]]
        _save(ctx, *inputs[:4])

    @staticmethod
    def backward(
        ctx: Any, wq: MaybeTensor, wk: MaybeTensor, wv: MaybeTensor, wdo: MaybeTensor
    ) -> tuple[MaybeTensor, ...]:
        if wq is None and wk is None and wv is None and wdo is None:
            return (None,) * 9
        _refuse_gradients(ctx, 4, "the third derivative of attention")
        gradients = JvpOfBackward.apply(*ctx.saved_tensors, wq, wk, wv, wdo, ctx.config, ctx.probes)
        by_u = [g if given else None for g, given in zip(gradients, ctx.given, strict=True)]
        return (None, None, None, None, *by_u, None, None)

    @staticmethod
    def jvp(
        ctx: Any,
        q: MaybeTensor,
        k: MaybeTensor,
        v: MaybeTensor,
        do: MaybeTensor,
        uq: MaybeTensor,
        uk: MaybeTensor,
        uv: MaybeTensor,
        *_: None,
    ) -> tuple[Tensor, ...]:
        _refuse_tangents("the third derivative of attention", q, k, v, do)
        tangents: tuple[Tensor, ...] = DoubleBackward.apply(*ctx.saved_tensors, uq, uk, uv, ctx.config, ctx.probes)
        return tangents

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return _vmap(DoubleBackward, info, in_dims, arguments, plain=4, probed=3)


@_differentiable
class JvpOfBackward(torch.autograd.Function):
    """A: q, k, v, do; tq, tk, tv, tdo -> tdq, tdk, tdv."""

    @staticmethod
    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        do: Tensor,
        tq: MaybeTensor,
        tk: MaybeTensor,
        tv: MaybeTensor,
        tdo: MaybeTensor,
        config: Config,
        probes: int,
    ) -> tuple[Tensor, ...]:
        tensors = {"q": q, "k": k, "v": v, "do": do, "tq": tq, "tk": tk, "tv": tv, "tdo": tdo}
        return run("jvp", config, probes, tensors, ("tdq", "tdk", "tdv"))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.config, ctx.probes = inputs[8:]
        ctx.given = [t is not None for t in inputs[4:8]]
        _save(ctx, *inputs[:4])

    @staticmethod
    def backward(ctx: Any, wq: MaybeTensor, wk: MaybeTensor, wv: MaybeTensor) -> tuple[MaybeTensor, ...]:
        if wq is None and wk is None and wv is None:
            return (None,) * 10
        _refuse_gradients(ctx, 4, "the third derivative of attention")
        gradients = DoubleBackward.apply(*ctx.saved_tensors, wq, wk, wv, ctx.config, ctx.probes)
        by_t = [g if given else None for g, given in zip(gradients, ctx.given, strict=True)]
        return (None, None, None, None, *by_t, None, None)

    @staticmethod
    def jvp(
        ctx: Any,
        q: MaybeTensor,
        k: MaybeTensor,
        v: MaybeTensor,
        do: MaybeTensor,
        tq: MaybeTensor,
        tk: MaybeTensor,
        tv: MaybeTensor,
        tdo: MaybeTensor,
        *_: None,
    ) -> tuple[Tensor, ...]:
        _refuse_tangents("the third derivative of attention", q, k, v, do)
        tangents: tuple[Tensor, ...] = JvpOfBackward.apply(*ctx.saved_tensors, tq, tk, tv, tdo, ctx.config, ctx.probes)
        return tangents

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        return _vmap(JvpOfBackward, info, in_dims, arguments, plain=4, probed=4)
