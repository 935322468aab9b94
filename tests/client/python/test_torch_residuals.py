"""Tensors that stay on the server between the passes: when, for how long, and what if they are lost.

Needs any torch from 1.13. Against the stand-in, which can be looked into; the last test runs against the server under
test.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator

import flashbob
import numpy as np
import pytest
import torch
from conftest import WAIT_SECONDS, wait_until
from fake_server import FakeServer
from flashbob.local_server import LocalServer
from flashbob.torch import scaled_dot_product_attention
from torch_reference import reference_attention, relative_error

Tensor = torch.Tensor


@pytest.fixture
def mine(fake: FakeServer) -> Iterator[flashbob.Client]:
    with flashbob.Client(fake.address) as client:
        yield client


def _leaves(rng: np.random.Generator) -> list[Tensor]:
    return [torch.from_numpy(rng.standard_normal((1, 2, 5, 4))).requires_grad_() for _ in range(3)]


def _penalty(o: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    first = torch.autograd.grad((o**3).sum(), inputs, create_graph=True)
    return [*first, *torch.autograd.grad(sum((g**2).sum() for g in first), inputs)]


def _check(got: list[Tensor], inputs: list[Tensor]) -> None:
    for a, b in zip(got, _penalty(reference_attention(*inputs), inputs), strict=True):
        assert relative_error(a, b) < 1e-11


def test_each_tensor_is_sent_once(fake: FakeServer, mine: flashbob.Client, rng: np.random.Generator) -> None:
    inputs = _leaves(rng)
    o = scaled_dot_product_attention(*inputs, residuals="server", client=mine)
    size = sum(t.numel() * 8 for t in inputs)
    assert fake.bytes_received == size
    _check(_penalty(o, inputs), inputs)
    assert {name for operation, name in fake.handle_inputs if operation == "double_backward"} == {
        *("q", "k", "v", "do", "o", "lse")
    }
    # Then came do, the three cotangents of the double backward, and the do of one more backward, by the chain rule.
    sent_after = fake.bytes_received - size
    assert sent_after == o.numel() * 8 + size + o.numel() * 8


def test_handles_go_when_the_graph_does(fake: FakeServer, mine: flashbob.Client, rng: np.random.Generator) -> None:
    inputs = _leaves(rng)
    o = scaled_dot_product_attention(*inputs, residuals="server", client=mine)
    assert len(fake.store) == 5
    first = torch.autograd.grad((o**2).sum(), inputs, create_graph=True)
    assert len(fake.store) == 6
    del o, first
    gc.collect()
    wait_until(lambda: not fake.store, f"{len(fake.store)} handles outlive their graph")


def test_nothing_is_kept_where_nothing_will_be_differentiated(
    fake: FakeServer, mine: flashbob.Client, rng: np.random.Generator
) -> None:
    inputs = _leaves(rng)
    with torch.no_grad():
        scaled_dot_product_attention(*inputs, residuals="server", client=mine)
    scaled_dot_product_attention(*(t.detach() for t in inputs), residuals="server", client=mine)
    assert fake.calls["PutTensors"] == 0


def test_small_tensors_are_sent_again_by_default(
    fake: FakeServer, mine: flashbob.Client, rng: np.random.Generator
) -> None:
    inputs = _leaves(rng)
    _check(_penalty(scaled_dot_product_attention(*inputs, client=mine), inputs), inputs)
    assert fake.calls["PutTensors"] == 0


def test_server_that_keeps_nothing_gets_everything_again(rng: np.random.Generator) -> None:
    server = FakeServer(max_lease_seconds=0)
    try:
        with flashbob.Client(server.address) as mine:
            inputs = _leaves(rng)
            _check(_penalty(scaled_dot_product_attention(*inputs, residuals="server", client=mine), inputs), inputs)
        assert server.calls["PutTensors"] == 0
    finally:
        server.stop()


@pytest.mark.parametrize("when", ["before backward", "before double backward"])
def test_lost_handles_are_sent_again(
    when: str, fake: FakeServer, mine: flashbob.Client, rng: np.random.Generator
) -> None:
    inputs = _leaves(rng)
    o = scaled_dot_product_attention(*inputs, residuals="server", client=mine)
    if when == "before backward":
        fake.forget_handles()
    first = torch.autograd.grad((o**3).sum(), inputs, create_graph=True)
    if when == "before double backward":
        fake.forget_handles()
    second = torch.autograd.grad(sum((g**2).sum() for g in first), inputs)
    _check([*first, *second], inputs)


@pytest.mark.parametrize("room", [0, 5])
def test_full_quota_is_not_waited_for(
    room: int, fake: FakeServer, mine: flashbob.Client, rng: np.random.Generator
) -> None:
    fake.max_stored = room
    inputs = _leaves(rng)
    _check(_penalty(scaled_dot_product_attention(*inputs, residuals="server", client=mine), inputs), inputs)


def test_changed_input_is_an_error_and_not_a_stale_answer(mine: flashbob.Client, rng: np.random.Generator) -> None:
    q, k, v = _leaves(rng)
    scaled = q * 1
    o = scaled_dot_product_attention(scaled, k, v, residuals="server", client=mine)
    with torch.no_grad():
        scaled.add_(1)
    with pytest.raises(RuntimeError, match="inplace"):
        o.sum().backward()


def test_second_backward_pass_with_another_cotangent_is_right(mine: flashbob.Client, rng: np.random.Generator) -> None:
    inputs = _leaves(rng)
    o = scaled_dot_product_attention(*inputs, residuals="server", client=mine)
    plain = reference_attention(*inputs)
    for _ in range(3):
        do, u = (torch.from_numpy(rng.standard_normal(o.shape)) for _ in range(2))
        for retain in (True, True):
            got = torch.autograd.grad(o, inputs, do, create_graph=True, retain_graph=retain)
            expected = torch.autograd.grad(plain, inputs, do, create_graph=True, retain_graph=retain)
            for a, b in zip(
                torch.autograd.grad(got, inputs, [u, u, u], retain_graph=True),
                torch.autograd.grad(expected, inputs, [u, u, u], retain_graph=True),
                strict=True,
            ):
                assert relative_error(a, b) < 1e-11


def test_thousand_training_steps_leave_nothing_behind(
    client: flashbob.Client, local_server: LocalServer | None, rng: np.random.Generator
) -> None:
    torch.manual_seed(int(rng.integers(1 << 31)))
    weight = torch.randn(8, 24, dtype=torch.float64, requires_grad=True)
    x = torch.from_numpy(rng.standard_normal((1, 6, 8)))
    optimizer = torch.optim.SGD([weight], lr=1e-4)

    def step() -> None:
        q, k, v = (t.unsqueeze(0) for t in (x @ weight).chunk(3, -1))
        o = scaled_dot_product_attention(q, k, v, residuals="server", client=client)
        (gradient,) = torch.autograd.grad((o**2).sum(), weight, create_graph=True)
        optimizer.zero_grad()
        (o.sum() + (gradient**2).sum()).backward()
        optimizer.step()

    def settled() -> dict[str, int]:
        # Handles are freed a moment after their graphs, a request's memory a moment after its answer.
        info = client.info()
        give_up = time.monotonic() + WAIT_SECONDS
        while (info.tenant.used_bytes or info.host_memory.reserved_bytes) and time.monotonic() < give_up:
            info = client.info()
        return {
            "handles": info.tenant.used_bytes,
            "reserved": info.host_memory.reserved_bytes,
            "client": _rss("self"),
            "server": _rss(str(local_server.pid)) if local_server is not None else 0,
        }

    for _ in range(200):
        step()
    before = settled()
    for _ in range(1000):
        step()
    after = settled()
    print(f"before {before}, after {after}")
    assert after["handles"] == before["handles"] == 0
    assert after["reserved"] == before["reserved"] == 0
    # A handle's tensors left behind in each step would be 10 MB on either side, a graph in the client much more.
    assert after["client"] - before["client"] < 8 << 20
    assert after["server"] - before["server"] < 8 << 20


def _rss(pid: str) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
