from flashbob.v1 import tensor_pb2 as _tensor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
FP32_PRECISION_ALLOW_TF32: Fp32Precision
FP32_PRECISION_IEEE: Fp32Precision
FP32_PRECISION_UNSPECIFIED: Fp32Precision
MASK_ALIGNMENT_BOTTOM_RIGHT: MaskAlignment
MASK_ALIGNMENT_TOP_LEFT: MaskAlignment
MASK_ALIGNMENT_UNSPECIFIED: MaskAlignment
OPERATION_BACKWARD: Operation
OPERATION_DOUBLE_BACKWARD: Operation
OPERATION_FORWARD: Operation
OPERATION_JVP: Operation
OPERATION_UNSPECIFIED: Operation

class Mask(_message.Message):
    __slots__ = ["alignment", "left", "right"]
    ALIGNMENT_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    alignment: MaskAlignment
    left: int
    right: int
    def __init__(self, left: _Optional[int] = ..., right: _Optional[int] = ..., alignment: _Optional[_Union[MaskAlignment, str]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ["cu_seqlens_k", "cu_seqlens_q", "deterministic", "fp32_precision", "layout", "mask", "probes", "scale"]
    CU_SEQLENS_K_FIELD_NUMBER: _ClassVar[int]
    CU_SEQLENS_Q_FIELD_NUMBER: _ClassVar[int]
    DETERMINISTIC_FIELD_NUMBER: _ClassVar[int]
    FP32_PRECISION_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    MASK_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    cu_seqlens_k: _containers.RepeatedScalarFieldContainer[int]
    cu_seqlens_q: _containers.RepeatedScalarFieldContainer[int]
    deterministic: bool
    fp32_precision: Fp32Precision
    layout: _tensor_pb2.Layout
    mask: Mask
    probes: int
    scale: float
    def __init__(self, layout: _Optional[_Union[_tensor_pb2.Layout, str]] = ..., mask: _Optional[_Union[Mask, _Mapping]] = ..., scale: _Optional[float] = ..., probes: _Optional[int] = ..., cu_seqlens_q: _Optional[_Iterable[int]] = ..., cu_seqlens_k: _Optional[_Iterable[int]] = ..., deterministic: bool = ..., fp32_precision: _Optional[_Union[Fp32Precision, str]] = ...) -> None: ...

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class MaskAlignment(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Fp32Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
