"""The blocking client."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import grpc

from flashbob import _config
from flashbob._calls import (
    Array,
    Backward,
    DoubleBackward,
    Forward,
    Input,
    Jvp,
    ProblemOptions,
    as_backward,
    as_double_backward,
    as_forward,
    as_jvp,
    backward_call,
    compute_call,
    double_backward_call,
    forward_call,
    jvp_call,
)
from flashbob._progress import ProgressOption, progress_reporter
from flashbob._retry import DEFAULT_RETRY, Retries, RetryPolicy
from flashbob._streams import Rpc, Streams, streams_of
from flashbob._tensors import HostTensor, allocate_numpy, from_numpy
from flashbob._wire import (
    DEFAULT_CHUNK_BYTES,
    Allocate,
    ComputeCall,
    ComputeReply,
    GetReply,
    Kept,
    Progress,
    Reply,
    new_request_id,
    put_messages,
)
from flashbob.errors import CancelledError, DeadlineError, HandleNotFoundError, make_error
from flashbob.handles import Reaper, Stored
from flashbob.problem import Problem
from flashbob.v1 import attention_service_pb2

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class Cancellation:
    """Cancels calls from another thread: pass it to calls, then call `cancel`.

    Once cancelled it stays so, and every call it is given to raises `CancelledError`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rpcs: list[Rpc] = []  # guarded by _lock
        self._event = threading.Event()

    def cancel(self) -> None:
        """Ends every call that has this object, now or later."""
        self._event.set()
        with self._lock:
            rpcs = list(self._rpcs)
        for rpc in rpcs:
            rpc.cancel()

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Sleeps that long, or until cancelled."""
        self._event.wait(seconds)

    @contextlib.contextmanager
    def of_one(self) -> Iterator[Callable[[Rpc], None]]:
        """For the client: what to tell of an RPC, so that within the block `cancel` ends it."""
        mine: list[Rpc] = []

        def started(rpc: Rpc) -> None:
            mine.append(rpc)
            with self._lock:
                self._rpcs.append(rpc)
            if self._event.is_set():
                rpc.cancel()

        try:
            yield started
        finally:
            with self._lock:
                for rpc in mine:
                    self._rpcs.remove(rpc)


# Clients by their keys, for operators whose arguments are numbers (torch.compile).
_clients: weakref.WeakValueDictionary[int, Client] = weakref.WeakValueDictionary()
_next_key = itertools.count(1)


def client_of_key(key: int) -> Client:
    """The living client with this `Client.key`."""
    client = _clients.get(key)
    if client is None:
        raise ValueError(f"the client with key {key} is gone")
    return client


class Client:
    """A connection to a FlashBoB server, on numpy arrays.

    Args:
        address: "HOST:PORT" or "unix:PATH"; by default FLASHBOB_SERVER, else 127.0.0.1:50051.
        token: bearer token; by default FLASHBOB_TOKEN.
        credentials: TLS credentials, as of `grpc.ssl_channel_credentials`; by default those that trust the authorities
            in FLASHBOB_TLS_CA's file, where it is set; else, and for False, clear text.
        timeout: seconds that a call may take, retries included; None for no bound. Each call may say otherwise.
        retry: how long requests are tried again; None never tries again.
        progress: True shows a tqdm bar on calls over a second (where tqdm is installed); a function is told
            (done, total) in floating-point operations.
        chunk_bytes: bytes of tensor a message carries.
        channel_options: further gRPC channel arguments.

    Safe to share between threads. Not to be used in a child process after a fork: make a new one there. The connection
    is made with the first call, and anew whenever it is lost.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        credentials: grpc.ChannelCredentials | Literal[False] | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = DEFAULT_RETRY,
        progress: ProgressOption = None,
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        channel_options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        self.address = _config.server_address(address)
        self.key = next(_next_key)
        _clients[self.key] = self
        self._metadata = _config.call_metadata(token)
        credentials = _config.channel_credentials(credentials)
        _config.warn_if_token_is_public(self.address, bool(self._metadata), credentials is not None)

        def connect(options: list[tuple[str, int | str]]) -> grpc.Channel:
            if credentials is None:
                return grpc.insecure_channel(self.address, options)
            return grpc.secure_channel(self.address, credentials, options)

        # One stays with its server, and so with the tensors stored there; the other takes turns, where there are
        # several servers. Each connects with its first call.
        self._channel = connect(_config.channel_options(channel_options))
        self._spread_channel = connect(_config.spread_options(channel_options))
        self._timeout = timeout
        self.retry = retry if retry is not None else RetryPolicy(max_elapsed=0)
        self._progress = progress
        self._chunk_bytes = chunk_bytes
        # Messages of streams are made and read by _wire: to gRPC they are bytes.
        self._streams = streams_of(self._channel)
        self._spread_streams = streams_of(self._spread_channel)
        prefix = _config.METHOD_PREFIX
        self._delete = self._channel.unary_unary(prefix + "DeleteTensors")
        self._info = self._channel.unary_unary(prefix + "GetServerInfo")
        # The reaper must not keep the client alive: it has what it needs to delete, and ends with the client.
        self._reaper = Reaper(_deleter(self._delete, self._metadata))
        self._end_reaper = weakref.finalize(self, self._reaper.close, 1.0)
        self._stored: weakref.WeakSet[Stored] = weakref.WeakSet()
        self._keeps_tensors: bool | None = None  # None: not asked yet. A benign race: all writers say the same.

    def close(self) -> None:
        """Frees every tensor stored through this client and closes the connection; what runs is cancelled."""
        for stored in list(self._stored):
            stored.release()
        self._reaper.close()
        self._end_reaper.detach()
        self._channel.close()
        self._spread_channel.close()

    def __enter__(self) -> Self:
        """The client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        return f"flashbob.Client({self.address!r})"

    # The four operations.

    def forward(
        self,
        q: Input,
        k: Input,
        v: Input,
        *,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
        **options: Unpack[ProblemOptions],
    ) -> Forward:
        """`o` [B, H, N, D_v] and `lse` [B, H, N] of softmax(scale Q K^T) V, of arrays or stored tensors.

        Args:
            q: [B, H, N_q, D], or as the layout says.
            k: [B, H_kv, N_k, D]; H_kv divides H.
            v: [B, H_kv, N_k, D_v].
            timeout: seconds, retries included.
            cancellation: ends the call from another thread.
            **options: the problem; see `flashbob.problem.make_problem`.
        """
        return as_forward(self.run(forward_call(q, k, v, options), timeout=timeout, cancellation=cancellation))

    def backward(
        self,
        q: Input,
        k: Input,
        v: Input,
        do: Input,
        *,
        o: Input | None = None,
        lse: Input | None = None,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
        **options: Unpack[ProblemOptions],
    ) -> Backward:
        """`dq`, `dk`, `dv`, shaped as q, k, v: the gradients of <do, o>. `o` and `lse` both or neither."""
        call = backward_call(q, k, v, do, o, lse, options)
        return as_backward(self.run(call, timeout=timeout, cancellation=cancellation))

    def double_backward(
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
        cancellation: Cancellation | None = None,
        **options: Unpack[ProblemOptions],
    ) -> DoubleBackward:
        """`gq`, `gk`, `gv`, `gdo`: the gradients of <uq, dq> + <uk, dk> + <uv, dv>; a u that is left out is zero."""
        call = double_backward_call(q, k, v, do, uq, uk, uv, o, lse, options)
        return as_double_backward(self.run(call, timeout=timeout, cancellation=cancellation))

    def jvp(
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
        cancellation: Cancellation | None = None,
        **options: Unpack[ProblemOptions],
    ) -> Jvp:
        """`to` and `tlse` along (tq, tk, tv); with `do` also `tdq`, `tdk`, `tdv`; a t that is left out is zero."""
        call = jvp_call(q, k, v, tq, tk, tv, do, tdo, o, lse, options)
        return as_jvp(self.run(call, timeout=timeout, cancellation=cancellation))

    # The tensor store.

    @property
    def keeps_tensors(self) -> bool:
        """Whether this server keeps tensors under handles; asked once."""
        if self._keeps_tensors is None:
            self._keeps_tensors = self.info().limits.max_lease_seconds > 0
        return self._keeps_tensors

    def put(
        self,
        tensors: Mapping[str, Array | HostTensor],
        *,
        lease_seconds: int = 0,
        local: Mapping[str, Callable[[], HostTensor | None]] | None = None,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> dict[str, Stored]:
        """Stores tensors on the server, by name; each is freed once its `Stored` is let go.

        Args:
            tensors: arrays by the contract's names.
            lease_seconds: how long each lives without use; 0 for the server's default.
            local: gives a tensor's bytes again, to re-send where its handle is gone; by default the array itself,
                which then lives as long as its handle.
            timeout: seconds, retries included.
            retry: how long it is tried again; None for as long as the client says.
        """
        hosts = {
            name: tensor if isinstance(tensor, HostTensor) else from_numpy(name, tensor)
            for name, tensor in tensors.items()
        }
        request_id = new_request_id()

        def attempt(seconds: float | None) -> bytes:
            messages = put_messages(hosts, lease_seconds, request_id, self._chunk_bytes)
            answers: list[bytes] = []
            self._stream("PutTensors", messages, answers.append, seconds)
            return b"".join(answers)

        answer = self._with_retries(attempt, request_id, timeout, retry=retry)
        reply = attention_service_pb2.PutTensorsResponse.FromString(answer)
        sources = local if local is not None else {name: _constant(host) for name, host in hosts.items()}
        return {
            name: self._own(name, handle, host.dtype, host.shape, sources.get(name))
            for (name, host), handle in zip(hosts.items(), reply.handles, strict=True)
        }

    def get(self, stored: Sequence[Stored], *, timeout: float | None = None) -> list[Array]:
        """Downloads stored tensors."""
        return self.fetch([tensor.handle for tensor in stored], allocate_numpy, timeout=timeout)

    def fetch(self, handles: Sequence[str], allocate: Allocate[T], *, timeout: float | None = None) -> list[T]:
        """Downloads stored tensors into memory that `allocate` makes."""
        request = attention_service_pb2.GetTensorsRequest(handles=handles).SerializeToString()

        def attempt(seconds: float | None) -> list[T]:
            reply = GetReply(allocate)
            self._stream("GetTensors", iter((request,)), reply.feed, seconds)
            return reply.finish()

        return self._with_retries(attempt, "", timeout)

    def delete(self, handles: Sequence[str], *, timeout: float | None = None) -> int:
        """Frees stored tensors; says how many of the handles were alive."""
        request = attention_service_pb2.DeleteTensorsRequest(handles=handles).SerializeToString()
        reply = self._unary(self._delete, request, timeout)
        return attention_service_pb2.DeleteTensorsResponse.FromString(reply).deleted

    def info(self, *, timeout: float | None = None) -> attention_service_pb2.GetServerInfoResponse:
        """The server's version, devices and limits, and this caller's quota and use."""
        return attention_service_pb2.GetServerInfoResponse.FromString(self._unary(self._info, b"", timeout))

    # What the above are made of.

    def compute(
        self,
        operation: str,
        problem: Problem,
        inputs: Mapping[str, Input | None],
        *,
        outputs: Sequence[str] = (),
        keep: Iterable[str] = (),
        lease_seconds: int = 0,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> Reply[Array]:
        """Any operation by name, with the outputs that are wanted and those of them that stay on the server.

        Args:
            operation: "forward", "backward", "double_backward" or "jvp".
            problem: the problem.
            inputs: arrays or stored tensors by the contract's names; None leaves one out.
            outputs: names of those wanted; empty for all.
            keep: names of those that stay on the server; `kept` of the reply has them.
            lease_seconds: how long a kept one lives without use; 0 for the server's default.
            timeout: seconds, retries included.
            cancellation: ends the call from another thread.
        """
        call = compute_call(operation, problem, inputs, outputs=outputs, keep=keep, lease_seconds=lease_seconds)
        return self.run(call, timeout=timeout, cancellation=cancellation)

    def run(
        self, call: ComputeCall, *, timeout: float | None = None, cancellation: Cancellation | None = None
    ) -> Reply[Array]:
        """Computes a prepared call into fresh numpy arrays."""
        return self.run_into(call, allocate_numpy, timeout=timeout, cancellation=cancellation)

    def run_into(
        self,
        call: ComputeCall,
        allocate: Allocate[T],
        *,
        timeout: float | None = None,
        cancellation: Cancellation | None = None,
        retry: RetryPolicy | None = None,
    ) -> Reply[T]:
        """Computes a prepared call into memory that `allocate` makes.

        Stored inputs whose handles are gone are sent again from this process's copies.
        """
        progress, done = progress_reporter(self._progress, call.operation)
        resent = False
        try:
            while True:
                try:
                    reply = self._with_retries(
                        functools.partial(self._attempt, call, allocate, progress, cancellation),
                        call.request_id,
                        timeout,
                        cancellation,
                        retry,
                    )
                    return dataclasses.replace(reply, resent=resent)
                except HandleNotFoundError:
                    again = call.without_handles()
                    if again is None:
                        raise
                    call, resent = again, True
        finally:
            done()

    def keep(self, name: str, kept: Kept) -> Stored:
        """Takes over an output that stayed on the server: it is freed once the `Stored` is let go."""
        return self._own(name, kept.handle, kept.dtype, kept.shape, None)

    def _own(
        self,
        name: str,
        handle: str,
        dtype: str,
        shape: tuple[int, ...],
        local: Callable[[], HostTensor | None] | None,
    ) -> Stored:
        self._reaper.start()
        stored = Stored(name, handle, dtype, shape, release=self._reaper.add, local=local)
        self._stored.add(stored)
        return stored

    def _attempt(
        self,
        call: ComputeCall,
        allocate: Allocate[T],
        progress: Progress | None,
        cancellation: Cancellation | None,
        seconds: float | None,
    ) -> Reply[T]:
        reply = ComputeReply(call.request_id, allocate, progress)
        streams = self._streams if call.is_bound else self._spread_streams
        self._stream("Compute", call.messages(self._chunk_bytes), reply.feed, seconds, cancellation, streams)
        return reply.finish()

    def _stream(
        self,
        method: str,
        messages: Iterator[bytes],
        on_message: Callable[[bytes], object],
        seconds: float | None,
        cancellation: Cancellation | None = None,
        streams: Streams | None = None,
    ) -> None:
        with cancellation.of_one() if cancellation is not None else contextlib.nullcontext() as started:
            (streams or self._streams).run(
                _config.METHOD_PREFIX + method,
                messages,
                on_message,
                timeout=seconds,
                metadata=self._metadata,
                started=started,
            )

    def _unary(self, method: Callable[..., Any], request: bytes, timeout: float | None) -> bytes:
        return self._with_retries(
            lambda seconds: bytes(method(request, timeout=seconds, metadata=self._metadata)), "", timeout
        )

    def _with_retries(
        self,
        attempt: Callable[[float | None], T],
        request_id: str,
        timeout: float | None,
        cancellation: Cancellation | None = None,
        retry: RetryPolicy | None = None,
    ) -> T:
        timeout = timeout if timeout is not None else self._timeout
        retries = Retries(retry or self.retry)
        start = time.monotonic()
        while True:
            elapsed = time.monotonic() - start
            if cancellation is not None and cancellation.cancelled:
                raise CancelledError("cancelled by the caller", code=grpc.StatusCode.CANCELLED, request_id=request_id)
            if timeout is not None and elapsed >= timeout:
                raise DeadlineError(
                    f"no answer within {timeout} s", code=grpc.StatusCode.DEADLINE_EXCEEDED, request_id=request_id
                )
            try:
                return attempt(None if timeout is None else timeout - elapsed)
            except grpc.RpcError as rpc_error:
                error = make_error(
                    rpc_error.code(), rpc_error.details() or "", rpc_error.trailing_metadata(), request_id
                )
            delay = retries.delay_after(error, time.monotonic() - start, timeout)
            if delay is None:
                raise error
            if cancellation is not None:
                cancellation.wait(delay)
            else:
                time.sleep(delay)


def _deleter(delete: Callable[..., Any], metadata: Sequence[tuple[str, str]]) -> Callable[[Sequence[str]], object]:
    return lambda handles: delete(
        attention_service_pb2.DeleteTensorsRequest(handles=handles).SerializeToString(), timeout=5.0, metadata=metadata
    )


def _constant(host: HostTensor) -> Callable[[], HostTensor]:
    return lambda: host
