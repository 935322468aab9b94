"""Streams of bytes, each run to its end on one thread.

grpc's own streams pass every message through two further threads, which costs a small call more than a millisecond and
three times the processor time; its unary calls wait for their events where they are called. `DirectStreams` does that
for streams, on the same internal binding (grpcio 1.51 to 1.85 were tried). Where a grpcio has another binding,
`PublicStreams` does the same on the public interface.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, Protocol

import grpc

Metadata = Sequence[tuple[str, str]]


class Rpc(Protocol):
    """What runs, to cancel it from another thread."""

    def cancel(self) -> object: ...


# Told of the RPC once it runs.
Started = Callable[[Rpc], object]


class StreamError(grpc.RpcError):  # type: ignore[misc]
    """An RPC ended with another status than OK; has what grpc's own errors have."""

    def __init__(self, code: grpc.StatusCode, details: str, trailers: Sequence[tuple[str, str | bytes]]) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code, self._details, self._trailers = code, details, trailers

    def code(self) -> grpc.StatusCode:
        """The status."""
        return self._code

    def details(self) -> str:
        """Its text."""
        return self._details

    def trailing_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """What came with it."""
        return self._trailers


class Streams(Protocol):
    """Runs RPCs of any shape."""

    def run(
        self,
        method: str,
        messages: Iterator[bytes],
        on_message: Callable[[bytes], object],
        *,
        timeout: float | None,
        metadata: Metadata,
        started: Started | None = None,
    ) -> None:
        """Sends all messages, gives each answer to `on_message`, returns when the RPC has ended well.

        Raises:
            grpc.RpcError: where it ended otherwise. What `messages` and `on_message` raise cancels the RPC.
        """


class PublicStreams:
    """On grpc's public interface, which ends the sending side in a frame of its own: see DirectStreams.run."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def run(
        self,
        method: str,
        messages: Iterator[bytes],
        on_message: Callable[[bytes], object],
        *,
        timeout: float | None,
        metadata: Metadata,
        started: Started | None = None,
    ) -> None:
        """See `Streams.run`."""
        failures: list[Exception] = []

        def guarded() -> Iterator[bytes]:
            # On grpc's thread, which would only log what is raised here.
            try:
                yield from messages
            except Exception as failure:
                failures.append(failure)
                raise

        rpc = self._channel.stream_stream(method)(guarded(), timeout=timeout, metadata=metadata)
        try:
            if started is not None:
                started(rpc)
            for message in rpc:
                on_message(message)
        except BaseException as error:
            # Also an interrupt from the keyboard: the server must not go on for nobody.
            rpc.cancel()
            if failures and isinstance(error, grpc.RpcError):
                raise failures[0] from error
            raise


class DirectStreams:
    """On one thread alone; on the public interface from the first call on that the binding does not take.

    That thread is the caller's, but for the main thread. Handlers of signals run there, between any two lines, and may
    raise, as Ctrl-C does: an event that the binding was handing over would be lost, and with it the end of the call. So
    calls of the main thread run on a thread beside it.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        from grpc._cython import cygrpc

        self._binding = cygrpc
        self._segregated_call = channel._channel.segregated_call
        self._codes = {code.value[0]: code for code in grpc.StatusCode}
        self._public = PublicStreams(channel)
        self._known = True  # a benign race: who finds the binding unknown says so for all
        self._beside_main = futures.ThreadPoolExecutor(1, thread_name_prefix="flashbob-streams")

    def run(
        self,
        method: str,
        messages: Iterator[bytes],
        on_message: Callable[[bytes], object],
        *,
        timeout: float | None,
        metadata: Metadata,
        started: Started | None = None,
    ) -> None:
        """See `Streams.run`."""
        if threading.current_thread() is not threading.main_thread():
            self._run(method, messages, on_message, timeout, metadata, started)
            return
        interrupted = threading.Event()
        running: list[Rpc] = []

        def note(rpc: Rpc) -> None:
            running.append(rpc)
            if started is not None:
                started(rpc)
            if interrupted.is_set():
                rpc.cancel()

        call = self._beside_main.submit(self._run, method, messages, on_message, timeout, metadata, note)
        try:
            call.result()
        except BaseException:
            if not call.done():
                # The server must not go on for nobody.
                interrupted.set()
                for rpc in running:
                    rpc.cancel()
                futures.wait([call])
            raise
        finally:
            # What it raised refers to this frame, which must not refer back.
            del call

    def _run(
        self,
        method: str,
        messages: Iterator[bytes],
        on_message: Callable[[bytes], object],
        timeout: float | None,
        metadata: Metadata,
        started: Started | None,
    ) -> None:
        # Two are always at hand, for the last one takes the end of the sending side with it. Where that comes by itself
        # and the server's windows have become smaller than what it has not read yet, gRPC 1.51 resets the stream.
        first = next(messages)
        ahead = list(itertools.islice(messages, 2))
        call = self._start(method, first, not ahead, timeout, metadata) if self._known else None
        if call is None:
            messages = itertools.chain((first,), ahead, messages)
            self._public.run(method, messages, on_message, timeout=timeout, metadata=metadata, started=started)
            return
        pending = {"send", "receive", "start", "end"}
        try:
            if started is not None:
                started(_DirectRpc(self._binding, call))
            status = self._drive(call, pending, ahead, messages, on_message)
        except BaseException:
            # The binding wants every event to be taken.
            _DirectRpc(self._binding, call).cancel()
            while pending:
                pending.discard(call.next_event().tag)
            raise
        code = self._codes.get(status.code(), grpc.StatusCode.UNKNOWN)
        if code is not grpc.StatusCode.OK:
            raise StreamError(code, _text(status.details()), status.trailing_metadata() or ())

    def _start(self, method: str, first: bytes, last: bool, timeout: float | None, metadata: Metadata) -> Any:
        """The call, its first message on the way; None where the binding is another than was known."""
        binding = self._binding
        try:
            return self._segregated_call(
                0,
                method.encode(),
                None,
                None if timeout is None else time.time() + timeout,
                metadata or None,
                None,
                (
                    (
                        (
                            binding.SendInitialMetadataOperation(metadata or None, 0),
                            *self._send(first, last),
                        ),
                        "send",
                    ),
                    ((binding.ReceiveInitialMetadataOperation(0),), "start"),
                    ((binding.ReceiveMessageOperation(0),), "receive"),
                    ((binding.ReceiveStatusOnClientOperation(0),), "end"),
                ),
            )
        except (AttributeError, TypeError):
            self._known = False
            return None

    def _send(self, message: bytes, last: bool) -> tuple[Any, ...]:
        operation = self._binding.SendMessageOperation(message, 0)
        return (operation, self._binding.SendCloseFromClientOperation(0)) if last else (operation,)

    def _drive(
        self,
        call: Any,
        pending: set[str],
        ahead: list[bytes],
        messages: Iterator[bytes],
        on_message: Callable[[bytes], object],
    ) -> Any:
        """Takes events until none is pending; returns the operation that has the status."""
        binding = self._binding
        status: Any = None
        while pending:
            event = call.next_event()
            pending.discard(event.tag)
            if event.tag == "end":
                (status,) = event.batch_operations
            elif event.tag == "send":
                if status is None and event.success and ahead:
                    message = ahead.pop(0)
                    call.operate(self._send(message, not ahead), "send")
                    pending.add("send")
                    ahead.extend(itertools.islice(messages, 1))
            elif event.tag == "receive":
                answer = event.batch_operations[0].message()
                if answer is None:
                    continue
                # Asked for before this one is worked on, so that the next arrives meanwhile. The status comes last.
                if status is None:
                    call.operate((binding.ReceiveMessageOperation(0),), "receive")
                    pending.add("receive")
                on_message(answer)
        return status


class _DirectRpc:
    def __init__(self, binding: Any, call: Any) -> None:
        self._binding = binding
        self._call = call

    def cancel(self) -> None:
        self._call.cancel(self._binding.StatusCode.cancelled, "cancelled by the caller")


def _text(details: str | bytes | None) -> str:
    return details.decode(errors="replace") if isinstance(details, bytes) else details or ""


def streams_of(channel: grpc.Channel) -> Streams:
    """The quickest that this grpcio has."""
    try:
        return DirectStreams(channel)
    except (AttributeError, ImportError):
        return PublicStreams(channel)
