from flashbob.v1 import problem_pb2 as _problem_pb2
from flashbob.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Capability(_message.Message):
    __slots__ = ["device", "dtypes", "layouts", "max_head_dim", "max_value_dim", "operations"]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    LAYOUTS_FIELD_NUMBER: _ClassVar[int]
    MAX_HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    MAX_VALUE_DIM_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    device: str
    dtypes: _containers.RepeatedScalarFieldContainer[_tensor_pb2.DataType]
    layouts: _containers.RepeatedScalarFieldContainer[_tensor_pb2.Layout]
    max_head_dim: int
    max_value_dim: int
    operations: _containers.RepeatedScalarFieldContainer[_problem_pb2.Operation]
    def __init__(self, operations: _Optional[_Iterable[_Union[_problem_pb2.Operation, str]]] = ..., dtypes: _Optional[_Iterable[_Union[_tensor_pb2.DataType, str]]] = ..., layouts: _Optional[_Iterable[_Union[_tensor_pb2.Layout, str]]] = ..., max_head_dim: _Optional[int] = ..., max_value_dim: _Optional[int] = ..., device: _Optional[str] = ...) -> None: ...

class ComputeAccepted(_message.Message):
    __slots__ = ["estimated_flops", "estimated_wait", "queue_position", "request_id"]
    ESTIMATED_FLOPS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATED_WAIT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    estimated_flops: float
    estimated_wait: _duration_pb2.Duration
    queue_position: int
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., estimated_flops: _Optional[float] = ..., queue_position: _Optional[int] = ..., estimated_wait: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ComputeProgress(_message.Message):
    __slots__ = ["done_flops", "total_flops"]
    DONE_FLOPS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FLOPS_FIELD_NUMBER: _ClassVar[int]
    done_flops: float
    total_flops: float
    def __init__(self, done_flops: _Optional[float] = ..., total_flops: _Optional[float] = ...) -> None: ...

class ComputeRequest(_message.Message):
    __slots__ = ["chunk", "spec"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    chunk: _tensor_pb2.TensorChunk
    spec: ComputeSpec
    def __init__(self, spec: _Optional[_Union[ComputeSpec, _Mapping]] = ..., chunk: _Optional[_Union[_tensor_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class ComputeResponse(_message.Message):
    __slots__ = ["accepted", "chunk", "progress", "result"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    accepted: ComputeAccepted
    chunk: _tensor_pb2.TensorChunk
    progress: ComputeProgress
    result: ComputeResult
    def __init__(self, accepted: _Optional[_Union[ComputeAccepted, _Mapping]] = ..., progress: _Optional[_Union[ComputeProgress, _Mapping]] = ..., result: _Optional[_Union[ComputeResult, _Mapping]] = ..., chunk: _Optional[_Union[_tensor_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class ComputeResult(_message.Message):
    __slots__ = ["accepted", "device", "tensors", "timings"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    accepted: ComputeAccepted
    device: str
    tensors: _containers.RepeatedCompositeFieldContainer[ResultTensor]
    timings: Timings
    def __init__(self, tensors: _Optional[_Iterable[_Union[ResultTensor, _Mapping]]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., device: _Optional[str] = ..., accepted: _Optional[_Union[ComputeAccepted, _Mapping]] = ...) -> None: ...

class ComputeSpec(_message.Message):
    __slots__ = ["brief_answer", "inputs", "operation", "outputs", "problem", "request_id"]
    BRIEF_ANSWER_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    brief_answer: bool
    inputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.InputTensor]
    operation: _problem_pb2.Operation
    outputs: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.OutputTensor]
    problem: _problem_pb2.Problem
    request_id: str
    def __init__(self, request_id: _Optional[str] = ..., operation: _Optional[_Union[_problem_pb2.Operation, str]] = ..., problem: _Optional[_Union[_problem_pb2.Problem, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[_tensor_pb2.InputTensor, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[_tensor_pb2.OutputTensor, _Mapping]]] = ..., brief_answer: bool = ...) -> None: ...

class DeleteTensorsRequest(_message.Message):
    __slots__ = ["handles"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handles: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTensorsResponse(_message.Message):
    __slots__ = ["deleted"]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    def __init__(self, deleted: _Optional[int] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ["compute_units", "memory", "model", "name"]
    COMPUTE_UNITS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    compute_units: int
    memory: PoolInfo
    model: str
    name: str
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., memory: _Optional[_Union[PoolInfo, _Mapping]] = ..., compute_units: _Optional[int] = ...) -> None: ...

class GetServerInfoRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ["capabilities", "devices", "host_memory", "limits", "tenant", "version"]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    HOST_MEMORY_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    capabilities: _containers.RepeatedCompositeFieldContainer[Capability]
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    host_memory: PoolInfo
    limits: Limits
    tenant: TenantInfo
    version: str
    def __init__(self, version: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., capabilities: _Optional[_Iterable[_Union[Capability, _Mapping]]] = ..., tenant: _Optional[_Union[TenantInfo, _Mapping]] = ..., host_memory: _Optional[_Union[PoolInfo, _Mapping]] = ...) -> None: ...

class GetTensorsHeader(_message.Message):
    __slots__ = ["tensors"]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    def __init__(self, tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ...) -> None: ...

class GetTensorsRequest(_message.Message):
    __slots__ = ["handles"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handles: _Optional[_Iterable[str]] = ...) -> None: ...

class GetTensorsResponse(_message.Message):
    __slots__ = ["chunk", "header"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    chunk: _tensor_pb2.TensorChunk
    header: GetTensorsHeader
    def __init__(self, header: _Optional[_Union[GetTensorsHeader, _Mapping]] = ..., chunk: _Optional[_Union[_tensor_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ["idle_upload_seconds", "max_chunk_bytes", "max_heads", "max_lease_seconds", "max_message_bytes", "max_metadata_bytes", "max_queued_requests", "max_request_bytes", "max_sequences"]
    IDLE_UPLOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_CHUNK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_HEADS_FIELD_NUMBER: _ClassVar[int]
    MAX_LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_METADATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    idle_upload_seconds: float
    max_chunk_bytes: int
    max_heads: int
    max_lease_seconds: int
    max_message_bytes: int
    max_metadata_bytes: int
    max_queued_requests: int
    max_request_bytes: int
    max_sequences: int
    def __init__(self, max_chunk_bytes: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_request_bytes: _Optional[int] = ..., max_queued_requests: _Optional[int] = ..., max_metadata_bytes: _Optional[int] = ..., idle_upload_seconds: _Optional[float] = ..., max_lease_seconds: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_heads: _Optional[int] = ...) -> None: ...

class PoolInfo(_message.Message):
    __slots__ = ["high_water_bytes", "largest_free_bytes", "limit_bytes", "reserved_bytes", "used_bytes"]
    HIGH_WATER_BYTES_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    high_water_bytes: int
    largest_free_bytes: int
    limit_bytes: int
    reserved_bytes: int
    used_bytes: int
    def __init__(self, limit_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., high_water_bytes: _Optional[int] = ..., largest_free_bytes: _Optional[int] = ...) -> None: ...

class PutTensorsRequest(_message.Message):
    __slots__ = ["chunk", "spec"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    chunk: _tensor_pb2.TensorChunk
    spec: PutTensorsSpec
    def __init__(self, spec: _Optional[_Union[PutTensorsSpec, _Mapping]] = ..., chunk: _Optional[_Union[_tensor_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class PutTensorsResponse(_message.Message):
    __slots__ = ["handles"]
    HANDLES_FIELD_NUMBER: _ClassVar[int]
    handles: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, handles: _Optional[_Iterable[str]] = ...) -> None: ...

class PutTensorsSpec(_message.Message):
    __slots__ = ["lease_seconds", "request_id", "tensors"]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    lease_seconds: int
    request_id: str
    tensors: _containers.RepeatedCompositeFieldContainer[_tensor_pb2.TensorSpec]
    def __init__(self, request_id: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[_tensor_pb2.TensorSpec, _Mapping]]] = ..., lease_seconds: _Optional[int] = ...) -> None: ...

class ResultTensor(_message.Message):
    __slots__ = ["data", "handle", "tensor"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    handle: str
    tensor: _tensor_pb2.TensorSpec
    def __init__(self, tensor: _Optional[_Union[_tensor_pb2.TensorSpec, _Mapping]] = ..., handle: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class TenantInfo(_message.Message):
    __slots__ = ["in_flight", "max_bytes", "max_in_flight", "name", "used_bytes"]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    in_flight: int
    max_bytes: int
    max_in_flight: int
    name: str
    used_bytes: int
    def __init__(self, name: _Optional[str] = ..., max_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., max_in_flight: _Optional[int] = ..., in_flight: _Optional[int] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ["compute", "queue", "receive"]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_FIELD_NUMBER: _ClassVar[int]
    compute: _duration_pb2.Duration
    queue: _duration_pb2.Duration
    receive: _duration_pb2.Duration
    def __init__(self, receive: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., queue: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ..., compute: _Optional[_Union[_duration_pb2.Duration, _Mapping]] = ...) -> None: ...
