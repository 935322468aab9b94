"""A stand-in for the server, in this process: the whole contract over real gRPC, computed by numpy in fp64.

What it adds to a real one is that tests steer it: it fails calls on request, forgets its handles, and counts what it
was asked. Nothing of it is shared with the package but the generated messages.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import numpy as np
from flashbob.v1 import attention_service_pb2 as service
from flashbob.v1 import error_details_pb2, problem_pb2, tensor_pb2
from reference import attention

_DTYPES = {
    tensor_pb2.DATA_TYPE_FP16: np.dtype(np.float16),
    tensor_pb2.DATA_TYPE_FP32: np.dtype(np.float32),
    tensor_pb2.DATA_TYPE_FP64: np.dtype(np.float64),
}
try:
    # Debian has no package of it: there, bfloat16 is not tested.
    import ml_dtypes

    _DTYPES[tensor_pb2.DATA_TYPE_BF16] = np.dtype(ml_dtypes.bfloat16)
except ImportError:
    pass
_OPERATIONS = {
    problem_pb2.OPERATION_FORWARD: ("forward", ("o", "lse")),
    problem_pb2.OPERATION_BACKWARD: ("backward", ("dq", "dk", "dv")),
    problem_pb2.OPERATION_DOUBLE_BACKWARD: ("double_backward", ("gq", "gk", "gv", "gdo")),
    problem_pb2.OPERATION_JVP: ("jvp", ("to", "tlse", "tdq", "tdk", "tdv")),
}
_PROBED = frozenset(
    {"uq", "uk", "uv", "tq", "tk", "tv", "tdo", "gq", "gk", "gv", "gdo", "to", "tlse", "tdq", "tdk", "tdv"}
)


def _name(number: int) -> str:
    return tensor_pb2.TensorName.Name(number).removeprefix("TENSOR_NAME_").lower()


class RefusalError(Exception):
    """Ends a call with a status and details as the service gives them."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str, retry_delay: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        details = error_details_pb2.StatusDetails(code=code.value[0], message=message)
        info = error_details_pb2.ErrorInfo(reason=reason, domain="flashbob", metadata={"told": "7"})
        details.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())
        if retry_delay is not None:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.seconds = int(retry_delay)
            retry.retry_delay.nanos = int(retry_delay % 1 * 1e9)
            details.details.add(type_url="type.googleapis.com/google.rpc.RetryInfo", value=retry.SerializeToString())
        self.trailers = (("grpc-status-details-bin", details.SerializeToString()),)

    def end(self, context: grpc.ServicerContext) -> None:
        """Ends the call."""
        context.set_trailing_metadata(self.trailers)
        context.abort(self.code, str(self))


class FakeServer:
    """Listens on a free loopback port until `stop`."""

    def __init__(
        self,
        *,
        max_lease_seconds: int = 600,
        chunk_bytes: int = 1000,
        port: int = 0,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self.max_lease_seconds = max_lease_seconds
        self.max_stored = 1 << 30  # tensors; more are refused as over the quota
        self.chunk_bytes = chunk_bytes
        self.lock = threading.Lock()
        self.store: dict[str, np.ndarray[Any, Any]] = {}
        self.calls: Counter[str] = Counter()  # by RPC, and "compute OPERATION"
        self.request_ids: list[str] = []
        self.handle_inputs: list[tuple[str, str]] = []  # (operation, tensor) that came by handle
        self.bytes_received = 0
        self.metadata: list[dict[str, Any]] = []
        self.failures: list[RefusalError] = []  # each fails one Compute
        self.hold = threading.Event()  # cleared: Compute waits before it answers
        self.hold.set()
        self.entered = threading.Event()  # a Compute has its inputs
        self.cancelled = threading.Event()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(8),
            options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.so_reuseport", 0)],
        )
        stream = grpc.stream_stream_rpc_method_handler
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "flashbob.v1.AttentionService",
                    {
                        "Compute": stream(
                            self._compute,
                            service.ComputeRequest.FromString,
                            service.ComputeResponse.SerializeToString,
                        ),
                        "PutTensors": grpc.stream_unary_rpc_method_handler(
                            self._put,
                            service.PutTensorsRequest.FromString,
                            service.PutTensorsResponse.SerializeToString,
                        ),
                        "GetTensors": grpc.unary_stream_rpc_method_handler(
                            self._get,
                            service.GetTensorsRequest.FromString,
                            service.GetTensorsResponse.SerializeToString,
                        ),
                        "DeleteTensors": grpc.unary_unary_rpc_method_handler(
                            self._delete,
                            service.DeleteTensorsRequest.FromString,
                            service.DeleteTensorsResponse.SerializeToString,
                        ),
                        "GetServerInfo": grpc.unary_unary_rpc_method_handler(
                            self._info,
                            service.GetServerInfoRequest.FromString,
                            service.GetServerInfoResponse.SerializeToString,
                        ),
                    },
                ),
            )
        )
        address = f"127.0.0.1:{port}"
        self.port = (
            self._server.add_insecure_port(address)
            if credentials is None
            else self._server.add_secure_port(address, credentials)
        )
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def stop(self) -> None:
        """Cancels what runs and frees the port."""
        self.hold.set()
        self._server.stop(0).wait(10)

    def forget_handles(self) -> None:
        """What a restart does to the store."""
        with self.lock:
            self.store.clear()

    # The RPCs.

    def _compute(
        self, requests: Iterator[service.ComputeRequest], context: grpc.ServicerContext
    ) -> Iterator[service.ComputeResponse]:
        try:
            yield from self._computed(requests, context)
        except RefusalError as refusal:
            refusal.end(context)

    def _computed(
        self, requests: Iterator[service.ComputeRequest], context: grpc.ServicerContext
    ) -> Iterator[service.ComputeResponse]:
        spec = next(requests).spec
        operation, all_outputs = _OPERATIONS[spec.operation]
        with self.lock:
            self.calls["Compute"] += 1
            self.calls["compute " + operation] += 1
            self.request_ids.append(spec.request_id)
            self.metadata.append(dict(context.invocation_metadata()))
            if self.failures:
                raise self.failures.pop(0)
        if not spec.inputs or spec.inputs[0].tensor.shape[-1] > 256:
            raise RefusalError(grpc.StatusCode.UNIMPLEMENTED, "head dim above 256", "UNSUPPORTED_PROBLEM")
        arrays: list[np.ndarray[Any, Any]] = []
        for entry in spec.inputs:
            if entry.WhichOneof("source") == "handle":
                with self.lock:
                    self.handle_inputs.append((operation, _name(entry.tensor.name)))
                    if entry.handle not in self.store:
                        raise RefusalError(grpc.StatusCode.NOT_FOUND, f"no tensor {entry.handle}", "HANDLE")
                    arrays.append(self.store[entry.handle])
                assert arrays[-1].shape == tuple(entry.tensor.shape)
            else:
                arrays.append(np.empty(tuple(entry.tensor.shape), _DTYPES[entry.tensor.dtype]))
        yield service.ComputeResponse(
            accepted=service.ComputeAccepted(request_id=spec.request_id, estimated_flops=100.0)
        )
        inline = {i for i, entry in enumerate(spec.inputs) if entry.WhichOneof("source") == "inline"}
        self._receive((request.chunk for request in requests), arrays, inline)
        context.add_callback(lambda: self.cancelled.set() if not context.is_active() else None)
        self.entered.set()
        self.hold.wait(60)
        yield service.ComputeResponse(progress=service.ComputeProgress(done_flops=50.0, total_flops=100.0))

        inputs = {_name(entry.tensor.name): array for entry, array in zip(spec.inputs, arrays, strict=True)}
        outputs = self._evaluate(operation, spec.problem, inputs)
        wanted = [(_name(entry.name), entry) for entry in spec.outputs]
        if not wanted:
            wanted = [(name, None) for name in all_outputs if name in outputs]
        result = service.ComputeResult(device="fake")
        result.timings.compute.nanos = 1_000_000
        inline_outputs = []
        for index, (name, entry) in enumerate(wanted):
            array = outputs[name]
            kept = entry is not None and entry.WhichOneof("destination") == "keep"
            handle = self._keep(array) if kept else ""
            result.tensors.add(tensor=self._spec(name, array), handle=handle)
            if not kept:
                inline_outputs.append((index, array))
        yield service.ComputeResponse(result=result)
        for index, array in inline_outputs:
            for offset, data in self._chunks(array):
                yield service.ComputeResponse(
                    chunk=tensor_pb2.TensorChunk(tensor_index=index, byte_offset=offset, data=data)
                )

    def _put(
        self, requests: Iterator[service.PutTensorsRequest], context: grpc.ServicerContext
    ) -> service.PutTensorsResponse:
        self.calls["PutTensors"] += 1
        if not self.max_lease_seconds:
            RefusalError(grpc.StatusCode.UNIMPLEMENTED, "keeps no tensors", "UNSUPPORTED_PROBLEM").end(context)
        spec = next(requests).spec
        if len(self.store) + len(spec.tensors) > self.max_stored:
            RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "quota full", "QUOTA", 0.01).end(context)
        arrays = [np.empty(tuple(tensor.shape), _DTYPES[tensor.dtype]) for tensor in spec.tensors]
        self._receive((request.chunk for request in requests), arrays, set(range(len(arrays))))
        return service.PutTensorsResponse(handles=[self._keep(array) for array in arrays])

    def _get(
        self, request: service.GetTensorsRequest, context: grpc.ServicerContext
    ) -> Iterator[service.GetTensorsResponse]:
        self.calls["GetTensors"] += 1
        with self.lock:
            arrays = [self.store.get(handle) for handle in request.handles]
        if any(array is None for array in arrays):
            RefusalError(grpc.StatusCode.NOT_FOUND, "no such tensor", "HANDLE").end(context)
        header = service.GetTensorsHeader(tensors=[self._spec("q", a) for a in arrays if a is not None])
        yield service.GetTensorsResponse(header=header)
        for index, array in enumerate(arrays):
            for offset, data in self._chunks(array):
                yield service.GetTensorsResponse(
                    chunk=tensor_pb2.TensorChunk(tensor_index=index, byte_offset=offset, data=data)
                )

    def _delete(
        self, request: service.DeleteTensorsRequest, context: grpc.ServicerContext
    ) -> service.DeleteTensorsResponse:
        del context
        self.calls["DeleteTensors"] += 1
        with self.lock:
            gone = [self.store.pop(handle, None) for handle in request.handles]
        return service.DeleteTensorsResponse(deleted=sum(array is not None for array in gone))

    def _info(
        self, request: service.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> service.GetServerInfoResponse:
        del request, context
        self.calls["GetServerInfo"] += 1
        with self.lock:
            used = sum(array.nbytes for array in self.store.values())
        return service.GetServerInfoResponse(
            version="fake",
            limits=service.Limits(max_chunk_bytes=1 << 20, max_lease_seconds=self.max_lease_seconds),
            tenant=service.TenantInfo(used_bytes=used),
        )

    # What they are made of.

    def _receive(
        self, chunks: Iterator[tensor_pb2.TensorChunk], arrays: list[np.ndarray[Any, Any]], inline: set[int]
    ) -> None:
        filled = {index: 0 for index in inline}
        for chunk in chunks:
            view = arrays[chunk.tensor_index].reshape(-1).view(np.uint8)
            if chunk.tensor_index not in filled or filled[chunk.tensor_index] != chunk.byte_offset:
                raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, f"chunk at {chunk.byte_offset}", "BAD_CHUNK")
            end = chunk.byte_offset + len(chunk.data)
            view[chunk.byte_offset : end] = np.frombuffer(chunk.data, np.uint8)
            filled[chunk.tensor_index] = end
            self.bytes_received += len(chunk.data)
        for index, count in filled.items():
            if count != arrays[index].nbytes:
                raise RefusalError(
                    grpc.StatusCode.INVALID_ARGUMENT, f"{count} of {arrays[index].nbytes} bytes", "BAD_CHUNK"
                )

    def _chunks(self, array: np.ndarray[Any, Any]) -> Iterator[tuple[int, bytes]]:
        data = np.ascontiguousarray(array).tobytes()
        for offset in range(0, len(data), self.chunk_bytes):
            yield offset, data[offset : offset + self.chunk_bytes]

    def _keep(self, array: np.ndarray[Any, Any]) -> str:
        handle = uuid.uuid4().hex
        with self.lock:
            self.store[handle] = array
        return handle

    def _spec(self, name: str, array: np.ndarray[Any, Any]) -> tensor_pb2.TensorSpec:
        dtype = next(number for number, known in _DTYPES.items() if known == array.dtype)
        return tensor_pb2.TensorSpec(
            name=tensor_pb2.TensorName.Value("TENSOR_NAME_" + name.upper()), dtype=dtype, shape=array.shape
        )

    def _evaluate(
        self, operation: str, problem: problem_pb2.Problem, inputs: dict[str, np.ndarray[Any, Any]]
    ) -> dict[str, np.ndarray[Any, Any]]:
        dtype = inputs["q"].dtype
        exact = {name: array.astype(np.float64) for name, array in inputs.items()}
        mask = problem.mask
        options: dict[str, Any] = {
            "window": (
                mask.left if mask.HasField("left") else -1,
                mask.right if mask.HasField("right") else -1,
            ),
            "bottom_right": mask.alignment == problem_pb2.MASK_ALIGNMENT_BOTTOM_RIGHT,
            "scale": problem.scale if problem.HasField("scale") else None,
            "probes": problem.probes,
            "probed": _PROBED,
        }
        if problem.layout == tensor_pb2.LAYOUT_THD:
            out = self._packed(operation, problem, exact, options)
        else:
            swap = problem.layout == tensor_pb2.LAYOUT_BNHD
            if swap:
                exact = {n: a if n == "lse" else a.swapaxes(-3, -2) for n, a in exact.items()}
            out = attention(operation, exact, **options)
            if swap:
                out = {n: a if n in ("lse", "tlse") else a.swapaxes(-3, -2) for n, a in out.items()}
        wide = np.float64 if dtype == np.float64 else np.float32
        return {
            name: np.ascontiguousarray(array.astype(wide if name in ("lse", "tlse") else dtype))
            for name, array in out.items()
        }

    def _packed(
        self,
        operation: str,
        problem: problem_pb2.Problem,
        inputs: dict[str, np.ndarray[Any, Any]],
        options: dict[str, Any],
    ) -> dict[str, np.ndarray[Any, Any]]:
        pieces: dict[str, list[np.ndarray[Any, Any]]] = {}
        for b in range(len(problem.cu_seqlens_q) - 1):
            rows = {
                "q": slice(problem.cu_seqlens_q[b], problem.cu_seqlens_q[b + 1]),
                "k": slice(problem.cu_seqlens_k[b], problem.cu_seqlens_k[b + 1]),
            }
            one = {}
            for name, array in inputs.items():
                if name in ("o", "lse"):
                    continue
                side = rows["k" if name[-1] in "kv" else "q"]
                # [..., T, H, D] to [..., 1, H, T, D]
                one[name] = array[..., side, :, :].swapaxes(-3, -2)[..., None, :, :, :]
            for name, array in attention(operation, one, **options).items():
                piece = array[..., 0, :, :] if name in ("lse", "tlse") else array[..., 0, :, :, :].swapaxes(-3, -2)
                pieces.setdefault(name, []).append(piece)
        return {
            name: np.concatenate(parts, axis=-1 if name in ("lse", "tlse") else -3) for name, parts in pieces.items()
        }
