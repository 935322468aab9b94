"""What people train: Hessian-vector products, a second-order optimiser, and a server that restarts in between.

Needs any torch from 1.13.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flashbob
import numpy as np
import pytest
import torch
from conftest import server_arguments, server_binary
from fake_server import FakeServer
from flashbob.local_server import LocalServer
from flashbob.torch import scaled_dot_product_attention
from torch import nn
from torch_reference import Transformer, reference_attention, relative_error

Tensor = torch.Tensor


def _causal_reference(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
    return reference_attention(q, k, v, window=(-1, 0 if is_causal else -1))


def _pair(rng: np.random.Generator, mine: Any) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Two transformers of the same weights, on FlashBoB and on plain torch, and a batch to learn."""
    torch.manual_seed(int(rng.integers(1 << 31)))
    model, plain = Transformer(mine).double(), Transformer(_causal_reference).double()
    plain.load_state_dict(model.state_dict())
    x = torch.from_numpy(rng.standard_normal((3, 7, 16)))
    return model, plain, x, torch.from_numpy(rng.integers(0, 5, (3, 7)))


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def _hvp(model: nn.Module, x: Tensor, y: Tensor, vector: Sequence[Tensor]) -> list[Tensor]:
    weights = list(model.parameters())
    gradients = torch.autograd.grad(_loss(model, x, y), weights, create_graph=True)
    return list(torch.autograd.grad(gradients, weights, vector))


def test_hessian_vector_product_of_two_layers_equals_plain_torchs(
    client: flashbob.Client, rng: np.random.Generator
) -> None:
    model, plain, x, y = _pair(rng, lambda *a, **r: scaled_dot_product_attention(*a, **r, client=client))
    vector = [torch.from_numpy(rng.standard_normal(tuple(p.shape))) for p in model.parameters()]
    for a, b in zip(_hvp(model, x, y, vector), _hvp(plain, x, y, vector), strict=True):
        assert relative_error(a, b) < 1e-9


def _newton_step(model: nn.Module, x: Tensor, y: Tensor, damping: float = 10.0, iterations: int = 4) -> None:
    """A damped Newton step, solved by conjugate gradients on Hessian-vector products, halved until the loss falls."""
    weights = list(model.parameters())
    gradient = torch.autograd.grad(_loss(model, x, y), weights)
    step = [torch.zeros_like(g) for g in gradient]
    residual = [g.clone() for g in gradient]
    direction = [r.clone() for r in residual]

    def dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        return sum((u * w).sum() for u, w in zip(a, b, strict=True))

    norm = dot(residual, residual)
    for _ in range(iterations):
        product = [h + damping * d for h, d in zip(_hvp(model, x, y, direction), direction, strict=True)]
        curvature = dot(direction, product)
        if curvature <= 0:
            break
        length = norm / curvature
        step = [s + length * d for s, d in zip(step, direction, strict=True)]
        residual = [r - length * p for r, p in zip(residual, product, strict=True)]
        norm, last = dot(residual, residual), norm
        direction = [r + norm / last * d for r, d in zip(residual, direction, strict=True)]
    start = [w.detach().clone() for w in weights]
    before = _loss(model, x, y).item()
    for halvings in range(8):
        with torch.no_grad():
            for weight, w, s in zip(weights, start, step, strict=True):
                weight.copy_(w - s * 0.5**halvings)
        if _loss(model, x, y).item() < before:
            return


def test_step_of_a_second_order_optimiser_equals_plain_torchs(
    client: flashbob.Client, rng: np.random.Generator
) -> None:
    model, plain, x, y = _pair(rng, lambda *a, **r: scaled_dot_product_attention(*a, **r, client=client))
    before = _loss(plain, x, y).item()
    for one in (model, plain):
        _newton_step(one, x, y)
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        assert relative_error(a, b) < 1e-9
    assert _loss(model, x, y).item() < before


def _train_through_a_restart(
    address: str, restart: Callable[[], None], rng: np.random.Generator, residuals: str
) -> None:
    with flashbob.Client(address, retry=flashbob.RetryPolicy(max_elapsed=60)) as client:
        model, plain, x, y = _pair(
            rng, lambda *a, **r: scaled_dot_product_attention(*a, **r, client=client, residuals=residuals)
        )
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]
        for step in range(6):
            for one, optimizer in zip((model, plain), optimizers, strict=True):
                gradients = torch.autograd.grad(_loss(one, x, y), list(one.parameters()), create_graph=True)
                penalty = sum((g**2).sum() for g in gradients)
                if one is model and step in (2, 4):
                    restart()
                optimizer.zero_grad()
                penalty.backward()
                optimizer.step()
        for a, b in zip(model.parameters(), plain.parameters(), strict=True):
            assert relative_error(a, b) < 1e-9


@pytest.mark.parametrize("residuals", ["client", "server"])
def test_training_goes_on_when_the_server_is_killed_and_restarted(
    residuals: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    binary = server_binary()
    if binary is None:
        pytest.skip("needs the server's program; run.sh names it")
    servers = [LocalServer(binary, server_arguments())]
    timers: list[threading.Timer] = []

    def start(address: str) -> None:
        servers.append(LocalServer(binary, server_arguments(), listen=address))

    def restart() -> None:
        # Killed now, there again in half a second: what is computed in between waits.
        address = servers[-1].address
        os.kill(servers[-1].pid, signal.SIGKILL)
        servers[-1].stop()
        timers.append(threading.Timer(0.5, start, (address,)))
        timers[-1].start()

    try:
        _train_through_a_restart(servers[0].address, restart, rng, residuals)
    finally:
        for timer in timers:
            timer.join()
        for server in servers:
            server.stop()
    assert len(servers) == 3


def test_training_goes_on_when_a_server_with_handles_is_restarted(rng: np.random.Generator) -> None:
    servers = [FakeServer()]

    def restart() -> None:
        port = servers[-1].port
        servers[-1].stop()
        servers.append(FakeServer(port=port))

    try:
        _train_through_a_restart(servers[0].address, restart, rng, "server")
    finally:
        servers[-1].stop()
    assert servers[1].calls["compute double_backward"] > 0
