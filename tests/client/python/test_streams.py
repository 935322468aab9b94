"""Both ways of running a stream: on grpc's public interface, and on the calling thread."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import flashbob
import grpc
import numpy as np
import pytest
from conftest import WAIT_SECONDS
from fake_server import FakeServer, RefusalError
from flashbob import _streams
from flashbob._calls import forward_call
from flashbob._streams import DirectStreams, PublicStreams, Streams

COMPUTE = "/flashbob.v1.AttentionService/Compute"
DATA, END_STREAM = 0, 1  # of HTTP/2


@pytest.fixture(params=[DirectStreams, PublicStreams])
def streams(request: pytest.FixtureRequest, fake: FakeServer) -> Iterator[Streams]:
    with grpc.insecure_channel(fake.address) as channel:
        yield request.param(channel)


def _messages(rng: np.random.Generator, rows: int = 50) -> Iterator[bytes]:
    q, k, v = (rng.standard_normal((1, 2, rows, 4)) for _ in range(3))
    return forward_call(q, k, v, {}).messages(chunk_bytes=300)


def _ignore(message: bytes) -> None:
    del message


def test_this_grpcio_runs_a_stream_on_one_thread(fake: FakeServer, rng: np.random.Generator) -> None:
    seen: list[set[threading.Thread]] = []

    def work() -> None:
        threads: set[threading.Thread] = set()
        streams.run(
            COMPUTE, _messages(rng), lambda _: threads.add(threading.current_thread()), timeout=None, metadata=()
        )
        seen.append(threads)

    with flashbob.Client(fake.address) as client:
        streams = client._streams
        assert isinstance(streams, DirectStreams)
        work()
        other = threading.Thread(target=work)
        other.start()
        other.join()
        # The main thread's beside it, for the sake of signals; any other's on itself.
        (beside,) = seen[0]
        assert beside.name.startswith("flashbob-streams")
        assert seen[1] == {other}
        assert streams._known, "this grpcio's binding is another: streams take the slow way"


def test_every_message_goes_and_comes_in_order(streams: Streams, fake: FakeServer, rng: np.random.Generator) -> None:
    got: list[bytes] = []
    streams.run(COMPUTE, _messages(rng), got.append, timeout=None, metadata=(("authorization", "Bearer x"),))
    assert fake.bytes_received == 3 * 2 * 50 * 4 * 8
    assert fake.metadata[0]["authorization"] == "Bearer x"
    # Accepted, progress, the result, then o in four chunks of 1,000 bytes and lse in one.
    assert len(got) == 3 + 4 + 1


def test_refusal_has_its_code_text_and_trailers(streams: Streams, fake: FakeServer, rng: np.random.Generator) -> None:
    refusal = RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "9 of 8 - full", "QUEUE_FULL", 0.5)
    fake.failures = [refusal]
    with pytest.raises(grpc.RpcError) as caught:
        streams.run(COMPUTE, _messages(rng, rows=5000), _ignore, timeout=None, metadata=())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert caught.value.details() == "9 of 8 - full"
    assert dict(caught.value.trailing_metadata())["grpc-status-details-bin"] == refusal.trailers[0][1]


def test_deadline_ends_it(streams: Streams, fake: FakeServer, rng: np.random.Generator) -> None:
    fake.hold.clear()
    with pytest.raises(grpc.RpcError) as caught:
        streams.run(COMPUTE, _messages(rng), _ignore, timeout=0.2, metadata=())
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_cancelled_from_another_thread(streams: Streams, fake: FakeServer, rng: np.random.Generator) -> None:
    fake.hold.clear()
    cancels: list[threading.Thread] = []

    def started(rpc: _streams.Rpc) -> None:
        cancels.append(threading.Thread(target=lambda: (fake.entered.wait(WAIT_SECONDS), rpc.cancel())))
        cancels[0].start()

    with pytest.raises(grpc.RpcError) as caught:
        streams.run(COMPUTE, _messages(rng), _ignore, timeout=None, metadata=(), started=started)
    cancels[0].join()
    assert caught.value.code() is grpc.StatusCode.CANCELLED
    assert fake.cancelled.wait(WAIT_SECONDS)


def test_failure_of_the_taker_cancels_and_is_raised(
    streams: Streams, fake: FakeServer, rng: np.random.Generator
) -> None:
    fake.hold.clear()

    def fail(message: bytes) -> None:
        del message
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        streams.run(COMPUTE, _messages(rng), fail, timeout=None, metadata=())
    # It ended though the server would have computed on, and the channel is as good as new.
    fake.hold.set()
    streams.run(COMPUTE, _messages(rng), _ignore, timeout=None, metadata=())


def test_failure_of_the_sender_cancels_and_is_raised(
    streams: Streams, fake: FakeServer, rng: np.random.Generator
) -> None:
    def failing() -> Iterator[bytes]:
        yield next(_messages(rng))
        raise RuntimeError("tensor gone")

    with pytest.raises(RuntimeError, match="tensor gone"):
        streams.run(COMPUTE, failing(), _ignore, timeout=None, metadata=())
    # The channel is as good as new.
    streams.run(COMPUTE, _messages(rng), _ignore, timeout=None, metadata=())


def test_interrupt_from_the_keyboard_cancels(streams: Streams, fake: FakeServer, rng: np.random.Generator) -> None:
    fake.hold.clear()

    def press() -> None:
        fake.entered.wait(WAIT_SECONDS)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    with pytest.raises(KeyboardInterrupt):
        streams.run(COMPUTE, _messages(rng), _ignore, timeout=None, metadata=())
    presser.join()
    assert fake.cancelled.wait(WAIT_SECONDS)


def test_closed_channel_ends_what_runs_on_it(fake: FakeServer, rng: np.random.Generator) -> None:
    fake.hold.clear()
    client = flashbob.Client(fake.address)
    closer = threading.Thread(target=lambda: (fake.entered.wait(WAIT_SECONDS), client.close()))
    closer.start()
    with pytest.raises(flashbob.CancelledError):
        client.forward(*(rng.standard_normal((1, 2, 5, 4)) for _ in range(3)))
    closer.join()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_end_of_a_stream_comes_with_its_last_message(count: int) -> None:
    ends: list[int] = []

    def serve(listener: socket.socket) -> None:
        # As much of HTTP/2 as it takes for a client to send: settings, then frames until one ends the stream.
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as stream:
            connection.sendall(bytes.fromhex("000000040000000000"))
            stream.read(24)
            while len(header := stream.read(9)) == 9:
                size, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
                stream.read(size)
                if kind == DATA and flags & END_STREAM:
                    ends.append(size)
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{listener.getsockname()[1]}") as channel:
            streams = DirectStreams(channel)
            with pytest.raises(grpc.RpcError):
                streams.run(COMPUTE, iter([bytes(1000)] * count), _ignore, timeout=WAIT_SECONDS, metadata=())
            assert streams._known
        server.join()
    assert len(ends) == 1
    assert ends[0] > 0, "an end in a frame of its own"


def test_server_that_is_not_there_is_unavailable() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel, pytest.raises(grpc.RpcError) as caught:
        DirectStreams(channel).run(COMPUTE, iter([b""]), _ignore, timeout=None, metadata=())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("error", [TypeError, AttributeError])
def test_unknown_binding_falls_back_to_the_public_interface(
    error: type[Exception], fake: FakeServer, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*arguments: object) -> None:
        del arguments
        raise error("another signature")

    with grpc.insecure_channel(fake.address) as channel:
        streams = DirectStreams(channel)
        monkeypatch.setattr(streams, "_segregated_call", other)
        for expected in (1, 2):
            streams.run(COMPUTE, _messages(rng), _ignore, timeout=None, metadata=())
            assert fake.calls["compute forward"] == expected


def test_channel_without_the_binding_uses_the_public_interface() -> None:
    class Other:
        stream_stream: Callable[..., object]

    assert isinstance(_streams.streams_of(Other()), PublicStreams)


def test_many_threads_share_a_client(client: flashbob.Client, rng: np.random.Generator) -> None:
    q, k, v = (rng.standard_normal((1, 2, 30, 4)) for _ in range(3))
    expected = client.forward(q, k, v).o
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                np.testing.assert_array_equal(client.forward(q, k, v).o, expected)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
