"""Requests to bytes and bytes to replies, with no I/O: what the blocking and the asyncio client share.

Chunk messages are written and read by hand, so that a tensor's bytes are copied once into the message that carries them
and once out of it; everything else goes through the generated messages.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from flashbob import problem as problems
from flashbob._tensors import HostTensor, dtype_name, dtype_number
from flashbob.errors import ProtocolError
from flashbob.handles import Stored
from flashbob.v1 import attention_service_pb2, tensor_pb2

T = TypeVar("T")

# Makes room for one output: (name, dtype, shape) to the object the caller gets and its writable bytes.
Allocate = Callable[[str, str, "tuple[int, ...]"], "tuple[T, memoryview]"]
# Told (done, total) in floating-point operations.
Progress = Callable[[float, float], None]

DEFAULT_CHUNK_BYTES = 1 << 20
_REQUEST_CHUNK_TAG = 0x12  # field 2 of ComputeRequest and PutTensorsRequest, length-delimited
COMPUTE_CHUNK_TAG = 0x22  # field 4 of ComputeResponse
GET_CHUNK_TAG = 0x12  # field 2 of GetTensorsResponse


def new_request_id() -> str:
    """An id that no other request has."""
    return uuid.uuid4().hex


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_chunk(index: int, offset: int, data: memoryview) -> bytes:
    """A ComputeRequest or PutTensorsRequest that holds one TensorChunk."""
    head = b""
    if index:
        head += b"\x08" + _varint(index)
    if offset:
        head += b"\x10" + _varint(offset)
    head += b"\x1a" + _varint(len(data))
    return b"".join((bytes((_REQUEST_CHUNK_TAG,)), _varint(len(head) + len(data)), head, data))


def decode_chunk(message: bytes) -> tuple[int, int, memoryview]:
    """(tensor index, byte offset, bytes) of a message whose only field is a TensorChunk; the bytes are not copied."""

    def varint(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            byte = message[at]
            value |= (byte & 0x7F) << shift
            at += 1
            if byte < 0x80:
                return value, at
            shift += 7

    try:
        size, at = varint(1)
        end = at + size
        if end != len(message):
            raise ProtocolError(f"a chunk of {size} bytes in a message of {len(message)}")
        index = offset = 0
        data = memoryview(b"")
        while at < end:
            tag = message[at]
            value, at = varint(at + 1)
            if tag == 0x08:
                index = value
            elif tag == 0x10:
                offset = value
            elif tag == 0x1A:
                data = memoryview(message)[at : at + value]
                at += value
            else:
                raise ProtocolError(f"a chunk with the unknown tag {tag:#x}")
    except IndexError:
        raise ProtocolError(f"a chunk message of {len(message)} bytes ends too early") from None
    if at != end:
        raise ProtocolError(f"a chunk's bytes end at {at}, its message at {end}")
    return index, offset, data


def _chunks(tensors: Sequence[tuple[int, HostTensor]], chunk_bytes: int) -> Iterator[bytes]:
    for index, tensor in tensors:
        data = tensor.data
        for offset in range(0, len(data), chunk_bytes):
            yield encode_chunk(index, offset, data[offset : offset + chunk_bytes])


def _tensor_spec(name: str, tensor: HostTensor | Stored) -> tensor_pb2.TensorSpec:
    return tensor_pb2.TensorSpec(
        name=problems.tensor_number(name), dtype=dtype_number(tensor.dtype), shape=tensor.shape
    )


@dataclass(frozen=True)
class ComputeCall:
    """One operation to compute: what is sent, the same for every try."""

    operation: str
    problem: problems.Problem
    inputs: Mapping[str, HostTensor | Stored]
    outputs: Sequence[str] = ()
    keep: frozenset[str] = frozenset()
    lease_seconds: int = 0
    request_id: str = field(default_factory=new_request_id)

    @property
    def is_bound(self) -> bool:
        """Whether it uses or leaves tensors in one server's store."""
        return bool(self.keep) or any(isinstance(tensor, Stored) for tensor in self.inputs.values())

    def messages(self, chunk_bytes: int) -> Iterator[bytes]:
        """The stream's messages: the spec, then the chunks of what is not stored on the server."""
        spec = attention_service_pb2.ComputeSpec(
            request_id=self.request_id,
            operation=problems.operation_number(self.operation),
            problem=self.problem.to_proto(),
            brief_answer=True,
        )
        inline: list[tuple[int, HostTensor]] = []
        for index, (name, tensor) in enumerate(self.inputs.items()):
            entry = spec.inputs.add(tensor=_tensor_spec(name, tensor))
            if isinstance(tensor, Stored):
                entry.handle = tensor.handle
            else:
                entry.inline.SetInParent()
                inline.append((index, tensor))
        for name in self.outputs or (problems.outputs_of(self.operation, self.inputs) if self.keep else ()):
            output = spec.outputs.add(name=problems.tensor_number(name))
            if name in self.keep:
                output.keep.lease_seconds = self.lease_seconds
                output.keep.SetInParent()
            else:
                output.inline.SetInParent()
        yield attention_service_pb2.ComputeRequest(spec=spec).SerializeToString()
        yield from _chunks(inline, chunk_bytes)

    def without_handles(self) -> ComputeCall | None:
        """The same call with every stored tensor sent again, once a handle was not found.

        `o` and `lse` are left out where this process has no copy: the server computes them anew. None where any other
        tensor has no copy here, or where nothing was stored.
        """
        inputs: dict[str, HostTensor | Stored] = {}
        lost = False
        for name, tensor in self.inputs.items():
            if not isinstance(tensor, Stored):
                inputs[name] = tensor
                continue
            lost = True
            local = tensor.local_copy()
            if local is not None:
                inputs[name] = local
            elif name not in ("o", "lse"):
                return None
        if not lost:
            return None
        if not ("o" in inputs and "lse" in inputs):
            inputs.pop("o", None)
            inputs.pop("lse", None)
        return replace(self, inputs=inputs, request_id=new_request_id())


def put_messages(
    tensors: Mapping[str, HostTensor], lease_seconds: int, request_id: str, chunk_bytes: int
) -> Iterator[bytes]:
    """The messages of PutTensors."""
    spec = attention_service_pb2.PutTensorsSpec(
        request_id=request_id,
        tensors=[_tensor_spec(name, tensor) for name, tensor in tensors.items()],
        lease_seconds=lease_seconds,
    )
    yield attention_service_pb2.PutTensorsRequest(spec=spec).SerializeToString()
    yield from _chunks(list(enumerate(tensors.values())), chunk_bytes)


@dataclass(frozen=True)
class Timings:
    """Where a request's time went on the server, in seconds."""

    receive: float
    queue: float
    compute: float


@dataclass(frozen=True)
class Kept:
    """An output that stayed on the server."""

    handle: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Reply(Generic[T]):
    """A computed operation: the outputs that came back, those that stayed, and where the time went.

    `resent` says that handles among the inputs were gone and their tensors were sent again.
    """

    tensors: Mapping[str, T]
    kept: Mapping[str, Kept]
    timings: Timings
    device: str
    request_id: str
    flops: float
    resent: bool = False


class Receiver(Generic[T]):
    """Fills outputs from chunks, in order and each byte once."""

    def __init__(self, specs: Sequence[tensor_pb2.TensorSpec], inline: Sequence[bool], allocate: Allocate[T]) -> None:
        self.names = [problems.tensor_name(spec.name) for spec in specs]
        self.tensors: list[T] = []  # those that come inline, in the reply's order
        self._views: list[memoryview] = []
        self._filled = [0] * len(specs)
        for spec, name, here in zip(specs, self.names, inline, strict=True):
            if not here:
                self._views.append(memoryview(b""))
                continue
            dtype, shape = dtype_name(spec.dtype), tuple(spec.shape)
            tensor, view = allocate(name, dtype, shape)
            self.tensors.append(tensor)
            expected = HostTensor(dtype, shape, view).nbytes
            if len(view) != expected:
                raise ProtocolError(f"room of {len(view)} bytes for {name} {list(shape)}, which has {expected}")
            self._views.append(view)

    def feed(self, message: bytes) -> None:
        """Takes one chunk message."""
        self.take(*decode_chunk(message))

    def take(self, index: int, offset: int, data: memoryview) -> None:
        """Takes the next bytes of one tensor."""
        if index >= len(self._views):
            raise ProtocolError(f"a chunk for tensor {index} of {len(self._views)}")
        view = self._views[index]
        if offset != self._filled[index] or offset + len(data) > len(view):
            raise ProtocolError(
                f"bytes {offset}..{offset + len(data)} of {self.names[index]}, which has {len(view)} and "
                f"{self._filled[index]} so far"
            )
        view[offset : offset + len(data)] = data
        self._filled[index] += len(data)

    def finish(self) -> None:
        """Checks that nothing is missing."""
        for name, view, filled in zip(self.names, self._views, self._filled, strict=True):
            if filled != len(view):
                raise ProtocolError(f"{name} ended after {filled} of {len(view)} bytes")


class ComputeReply(Generic[T]):
    """Takes the messages of a Compute reply one by one."""

    def __init__(self, request_id: str, allocate: Allocate[T], progress: Progress | None) -> None:
        self._request_id = request_id
        self._allocate = allocate
        self._progress = progress
        self._flops = 0.0
        self._result: attention_service_pb2.ComputeResult | None = None
        self._receiver: Receiver[T] | None = None

    def feed(self, message: bytes) -> None:
        """Takes the next message."""
        if message[:1] == bytes((COMPUTE_CHUNK_TAG,)):
            if self._receiver is None:
                raise ProtocolError("a chunk came before the result that describes it")
            self._receiver.feed(message)
            return
        try:
            response = attention_service_pb2.ComputeResponse.FromString(message)
        except DecodeError as error:
            raise ProtocolError(f"a reply of {len(message)} bytes that is no ComputeResponse: {error}") from None
        kind = response.WhichOneof("payload")
        if kind == "accepted":
            self._accept(response.accepted)
        elif kind == "progress" and self._progress is not None:
            self._progress(response.progress.done_flops, response.progress.total_flops)
        elif kind == "result":
            self._result = result = response.result
            if result.HasField("accepted"):
                self._accept(result.accepted)
            self._receiver = Receiver(
                [entry.tensor for entry in result.tensors],
                [not entry.handle for entry in result.tensors],
                self._allocate,
            )
            for index, entry in enumerate(result.tensors):
                if entry.data:
                    self._receiver.take(index, 0, memoryview(entry.data))

    def _accept(self, accepted: attention_service_pb2.ComputeAccepted) -> None:
        self._flops = accepted.estimated_flops
        self._request_id = accepted.request_id or self._request_id

    def finish(self) -> Reply[T]:
        """The whole reply, once the stream has ended well."""
        if self._result is None or self._receiver is None:
            raise ProtocolError("the reply ended without a result", code=grpc.StatusCode.INTERNAL)
        self._receiver.finish()
        timings = self._result.timings
        inline = [problems.tensor_name(entry.tensor.name) for entry in self._result.tensors if not entry.handle]
        return Reply(
            tensors=dict(zip(inline, self._receiver.tensors, strict=True)),
            kept={
                problems.tensor_name(entry.tensor.name): Kept(
                    entry.handle, dtype_name(entry.tensor.dtype), tuple(entry.tensor.shape)
                )
                for entry in self._result.tensors
                if entry.handle
            },
            timings=Timings(_seconds(timings.receive), _seconds(timings.queue), _seconds(timings.compute)),
            device=self._result.device,
            request_id=self._request_id,
            flops=self._flops,
        )


class GetReply(Generic[T]):
    """Takes the messages of a GetTensors reply one by one."""

    def __init__(self, allocate: Allocate[T]) -> None:
        self._allocate = allocate
        self._receiver: Receiver[T] | None = None

    def feed(self, message: bytes) -> None:
        """Takes the next message."""
        if message[:1] == bytes((GET_CHUNK_TAG,)):
            if self._receiver is None:
                raise ProtocolError("a chunk came before the header that describes it")
            self._receiver.feed(message)
            return
        header = attention_service_pb2.GetTensorsResponse.FromString(message).header
        self._receiver = Receiver(header.tensors, [True] * len(header.tensors), self._allocate)

    def finish(self) -> list[T]:
        """The tensors in the order asked for, once the stream has ended well."""
        if self._receiver is None:
            raise ProtocolError("the reply ended without a header", code=grpc.StatusCode.INTERNAL)
        self._receiver.finish()
        return self._receiver.tensors


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos * 1e-9


__all__ = [
    "DEFAULT_CHUNK_BYTES",
    "Allocate",
    "ComputeCall",
    "ComputeReply",
    "GetReply",
    "Kept",
    "Progress",
    "Receiver",
    "Reply",
    "Timings",
    "decode_chunk",
    "encode_chunk",
    "new_request_id",
    "put_messages",
]
