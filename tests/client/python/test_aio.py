"""The asyncio client."""

from __future__ import annotations

import asyncio

import flashbob
import grpc
import numpy as np
import pytest
from conftest import WAIT_SECONDS
from fake_server import FakeServer, RefusalError


def _x(rng: np.random.Generator, count: int = 3) -> list[np.ndarray]:
    return [rng.standard_normal((1, 2, 5, 4)) for _ in range(count)]


def test_every_operation_equals_the_blocking_clients(client: flashbob.Client, rng: np.random.Generator) -> None:
    q, k, v, do, u = _x(rng, 5)

    async def both() -> None:
        async with flashbob.AsyncClient(client.address) as mine:
            pairs = [
                (await mine.forward(q, k, v, causal=True), client.forward(q, k, v, causal=True)),
                (await mine.backward(q, k, v, do), client.backward(q, k, v, do)),
                (await mine.double_backward(q, k, v, do, uq=u), client.double_backward(q, k, v, do, uq=u)),
                (await mine.jvp(q, k, v, tk=u, do=do), client.jvp(q, k, v, tk=u, do=do)),
            ]
            for got, expected in pairs:
                for a, b in zip(got, expected, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)

    asyncio.run(both())


def test_calls_run_beside_each_other(fake: FakeServer, rng: np.random.Generator) -> None:
    q, k, v = _x(rng)

    async def many() -> int:
        async with flashbob.AsyncClient(fake.address) as mine:
            return len(await asyncio.gather(*(mine.forward(q, k, v) for _ in range(20))))

    assert asyncio.run(many()) == 20


def test_cancelled_task_cancels_its_call(fake: FakeServer, rng: np.random.Generator) -> None:
    fake.hold.clear()

    async def cancelled() -> None:
        async with flashbob.AsyncClient(fake.address) as mine:
            call = asyncio.create_task(mine.forward(*_x(rng)))
            assert await asyncio.to_thread(fake.entered.wait, WAIT_SECONDS)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(fake.cancelled.wait, WAIT_SECONDS)

    asyncio.run(cancelled())


def test_retries_deadlines_and_errors_are_those_of_the_blocking_client(
    fake: FakeServer, rng: np.random.Generator
) -> None:
    fake.failures = [
        RefusalError(grpc.StatusCode.UNAVAILABLE, "draining", "DRAINING", 0.001),
        RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "9 GB of 8 GB", "TOO_LARGE"),
    ]

    async def calls() -> None:
        async with flashbob.AsyncClient(fake.address) as mine:
            with pytest.raises(flashbob.TooLargeError, match="9 GB of 8 GB"):
                await mine.forward(*_x(rng))
            fake.hold.clear()
            with pytest.raises(flashbob.DeadlineError):
                await mine.forward(*_x(rng), timeout=0.2)

    asyncio.run(calls())
    assert len(set(fake.request_ids[:2])) == 1


def test_store_holds_tensors_until_they_are_deleted(fake: FakeServer, rng: np.random.Generator) -> None:
    q, k, v = _x(rng)

    async def stored() -> None:
        async with flashbob.AsyncClient(fake.address) as mine:
            handles = await mine.put({"q": q, "k": k, "v": v})
            np.testing.assert_array_equal((await mine.get([handles["k"]]))[0], k)
            fake.forget_handles()
            assert (await mine.forward(**handles)).o.shape == q.shape
            handles = await mine.put({"q": q})
            assert await mine.delete([handles["q"].handle, "unknown"]) == 1

    asyncio.run(stored())
    assert not fake.store
