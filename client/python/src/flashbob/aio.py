"""The asyncio client: the operations of `flashbob.Client` as coroutines. Cancelling a task cancels its call.

Each call runs the blocking client on a thread of a pool, not gRPC's own asyncio API: that API, when the server refuses
a request while its tensors are still being sent, reports an internal error in place of the server's status. The
threads wait without the interpreter's lock, and there is one behaviour to know.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from flashbob._calls import Array, Backward, DoubleBackward, Forward, Input, Jvp, ProblemOptions
from flashbob._wire import ComputeCall, Kept, Reply
from flashbob.client import Cancellation, Client
from flashbob.handles import Stored
from flashbob.problem import Problem
from flashbob.v1 import attention_service_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class AsyncClient:
    """A connection to a FlashBoB server for asyncio, on numpy arrays.

    Args:
        address: as of `flashbob.Client`.
        max_concurrency: calls that run at once; further ones wait their turn here.
        **options: those of `flashbob.Client`.
    """

    def __init__(self, address: str | None = None, *, max_concurrency: int = 32, **options: Any) -> None:
        self._client = Client(address, **options)
        self._threads = ThreadPoolExecutor(max_concurrency, thread_name_prefix="flashbob-aio")

    @property
    def address(self) -> str:
        """The server's."""
        return self._client.address

    async def close(self) -> None:
        """Closes the connection; what runs is cancelled."""
        await asyncio.get_running_loop().run_in_executor(None, self._client.close)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        """The client itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        await self.close()

    async def forward(
        self, q: Input, k: Input, v: Input, *, timeout: float | None = None, **options: Unpack[ProblemOptions]
    ) -> Forward:
        """As `flashbob.Client.forward`."""
        return await self._cancellable(self._client.forward, q, k, v, timeout=timeout, **options)

    async def backward(
        self,
        q: Input,
        k: Input,
        v: Input,
        do: Input,
        *,
        o: Input | None = None,
        lse: Input | None = None,
        timeout: float | None = None,
        **options: Unpack[ProblemOptions],
    ) -> Backward:
        """As `flashbob.Client.backward`."""
        return await self._cancellable(self._client.backward, q, k, v, do, o=o, lse=lse, timeout=timeout, **options)

    async def double_backward(
        self,
        q: Input,
        k: Input,
        v: Input,
        do: Input,
        *,
        uq: Input | None = None,
        uk: Input | None = None,
        uv: Input | None = None,
        o: Input | None = None,
        lse: Input | None = None,
        timeout: float | None = None,
        **options: Unpack[ProblemOptions],
    ) -> DoubleBackward:
        """As `flashbob.Client.double_backward`."""
        return await self._cancellable(
            self._client.double_backward, q, k, v, do, uq=uq, uk=uk, uv=uv, o=o, lse=lse, timeout=timeout, **options
        )

    async def jvp(
        self,
        q: Input,
        k: Input,
        v: Input,
        *,
        tq: Input | None = None,
        tk: Input | None = None,
        tv: Input | None = None,
        do: Input | None = None,
        tdo: Input | None = None,
        o: Input | None = None,
        lse: Input | None = None,
        timeout: float | None = None,
        **options: Unpack[ProblemOptions],
    ) -> Jvp:
        """As `flashbob.Client.jvp`."""
        return await self._cancellable(
            self._client.jvp,
            *(q, k, v),
            **{"tq": tq, "tk": tk, "tv": tv, "do": do, "tdo": tdo, "o": o, "lse": lse, "timeout": timeout, **options},
        )

    async def compute(
        self,
        operation: str,
        problem: Problem,
        inputs: Mapping[str, Input | None],
        *,
        outputs: Sequence[str] = (),
        keep: Iterable[str] = (),
        lease_seconds: int = 0,
        timeout: float | None = None,
    ) -> Reply[Array]:
        """As `flashbob.Client.compute`."""
        return await self._cancellable(
            self._client.compute,
            *(operation, problem, inputs),
            **{"outputs": outputs, "keep": keep, "lease_seconds": lease_seconds, "timeout": timeout},
        )

    async def run(self, call: ComputeCall, *, timeout: float | None = None) -> Reply[Array]:
        """As `flashbob.Client.run`."""
        return await self._cancellable(self._client.run, call, timeout=timeout)

    async def put(
        self, tensors: Mapping[str, Array], *, lease_seconds: int = 0, timeout: float | None = None
    ) -> dict[str, Stored]:
        """As `flashbob.Client.put`."""
        return await self._on_thread(self._client.put, tensors, lease_seconds=lease_seconds, timeout=timeout)

    async def get(self, stored: Sequence[Stored], *, timeout: float | None = None) -> list[Array]:
        """As `flashbob.Client.get`."""
        return await self._on_thread(self._client.get, stored, timeout=timeout)

    async def delete(self, handles: Sequence[str], *, timeout: float | None = None) -> int:
        """As `flashbob.Client.delete`."""
        return await self._on_thread(self._client.delete, handles, timeout=timeout)

    async def info(self, *, timeout: float | None = None) -> attention_service_pb2.GetServerInfoResponse:
        """As `flashbob.Client.info`."""
        return await self._on_thread(self._client.info, timeout=timeout)

    def keep(self, name: str, kept: Kept) -> Stored:
        """As `flashbob.Client.keep`."""
        return self._client.keep(name, kept)

    async def _on_thread(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, functools.partial(method, *args, **kwargs))

    async def _cancellable(self, method: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        cancellation = Cancellation()
        try:
            return await self._on_thread(method, *args, cancellation=cancellation, **kwargs)
        except asyncio.CancelledError:
            cancellation.cancel()
            raise
