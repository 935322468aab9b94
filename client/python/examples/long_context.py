"""Backward over backward at a length whose score matrix would not fit: forward, backward, double backward.

    long_context.py [--rows 65536] [--head-dim 64] [--heads 1] [--dtype bfloat16] [--device cuda] [--exact] [--json]

There is no plain PyTorch to compare with at such lengths. What holds at any length: the Hessian is symmetric, so
<w, H u> = <u, H w>, and a backward pass pairs with a tangent, <do, J u> = <u, B do>.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import flashbob
import torch
from flashbob.torch import scaled_dot_product_attention
from torch import Tensor

# Of the identities, and of each output's error against the same in fp64.
BARS = {"float64": 1e-12, "float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}
ERRORS = {"float64": 1e-12, "float32": 4e-6, "float16": 4e-4, "bfloat16": 2.7e-3}


def inner(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> float:
    """Sum of products, in fp64."""
    return sum(float((x.detach().double() * y.detach().double()).sum()) for x, y in zip(a, b, strict=True))


def norm(a: tuple[Tensor, ...]) -> float:
    """In fp64."""
    return inner(a, a) ** 0.5


def main() -> None:
    """Prints times and how far the identities are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=BARS, default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exact", action="store_true", help="compute it in fp64 too, and compare")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse_args()
    torch.manual_seed(0)

    def draw() -> Tensor:
        shape = (1, options.heads, options.rows, options.head_dim)
        return torch.randn(shape, device=options.device).to(getattr(torch, options.dtype))

    start = time.perf_counter()
    times: dict[str, float] = {}

    def say(text: str) -> None:
        if not options.json:
            print(text)

    def lap(what: str) -> None:
        nonlocal start
        now = time.perf_counter()
        times[what] = round((now - start) * 1e3, 1)
        say(f"{what}: {times[what]:.0f} ms")
        start = now

    with flashbob.local() as client:
        devices = [f"{d.name} {d.model}" for d in client.info().devices]
        say(f"server: {client.address} {', '.join(devices)}")
        inputs = tuple(draw().requires_grad_() for _ in range(3))
        u, w = tuple(draw() for _ in range(3)), tuple(draw() for _ in range(3))
        do = draw().requires_grad_()
        start = time.perf_counter()
        o = scaled_dot_product_attention(*inputs, client=client)
        lap("forward")
        gradients = torch.autograd.grad(o, inputs, do, create_graph=True)
        lap("backward")
        hu = torch.autograd.grad(gradients, (*inputs, do), u, retain_graph=True)
        lap("double backward along u")
        hw = torch.autograd.grad(gradients, inputs, w)
        lap("double backward along w")
        # H u's last part is the gradient by do, which is the tangent J u.
        symmetry = abs(inner(w, hu[:3]) - inner(u, hw)) / (norm(w) * norm(hu[:3]) + norm(u) * norm(hw))
        pairing = abs(inner((do,), hu[3:]) - inner(u, gradients)) / (norm((do,)) * norm(hu[3:]))
        bar = BARS[options.dtype]
        say(f"<w, H u> against <u, H w>: {symmetry:.1e}; <do, J u> against <u, B do>: {pairing:.1e} (bar {bar:.0e})")
        errors: dict[str, float] = {}
        if options.exact:
            exact = tuple(t.detach().double().requires_grad_() for t in (*inputs, do))
            exact_o = scaled_dot_product_attention(*exact[:3], client=client)
            exact_gradients = torch.autograd.grad(exact_o, exact[:3], exact[3], create_graph=True)
            exact_hu = torch.autograd.grad(exact_gradients, exact, tuple(t.double() for t in u))
            lap("all but w in fp64")
            names = ("o", "dq", "dk", "dv", "gq", "gk", "gv", "gdo")
            pairs = zip((o, *gradients, *hu), (exact_o, *exact_gradients, *exact_hu), strict=True)
            errors = {n: norm((a.double() - b,)) / norm((b,)) for n, (a, b) in zip(names, pairs, strict=True)}
            say(f"errors against fp64: {', '.join(f'{n} {e:.1e}' for n, e in errors.items())}")
        if options.json:
            shape = [1, options.heads, options.rows, options.head_dim]
            result = {"shape": shape, "dtype": options.dtype, "tensors on": options.device, "server": devices}
            result |= {"ms": times, "symmetry": symmetry, "pairing": pairing, "bar": bar, "errors": errors}
            print(json.dumps(result))
        if not max(symmetry, pairing) <= bar or not max(errors.values(), default=0.0) <= ERRORS[options.dtype]:
            sys.exit(1)


if __name__ == "__main__":
    main()
