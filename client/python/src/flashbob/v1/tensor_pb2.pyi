from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DATA_TYPE_BF16: DataType
DATA_TYPE_FP16: DataType
DATA_TYPE_FP32: DataType
DATA_TYPE_FP64: DataType
DATA_TYPE_UNSPECIFIED: DataType
DESCRIPTOR: _descriptor.FileDescriptor
LAYOUT_BHND: Layout
LAYOUT_BNHD: Layout
LAYOUT_THD: Layout
LAYOUT_UNSPECIFIED: Layout
TENSOR_NAME_DK: TensorName
TENSOR_NAME_DLSE: TensorName
TENSOR_NAME_DO: TensorName
TENSOR_NAME_DQ: TensorName
TENSOR_NAME_DV: TensorName
TENSOR_NAME_GDO: TensorName
TENSOR_NAME_GK: TensorName
TENSOR_NAME_GQ: TensorName
TENSOR_NAME_GV: TensorName
TENSOR_NAME_K: TensorName
TENSOR_NAME_LSE: TensorName
TENSOR_NAME_O: TensorName
TENSOR_NAME_Q: TensorName
TENSOR_NAME_TDK: TensorName
TENSOR_NAME_TDO: TensorName
TENSOR_NAME_TDQ: TensorName
TENSOR_NAME_TDV: TensorName
TENSOR_NAME_TK: TensorName
TENSOR_NAME_TLSE: TensorName
TENSOR_NAME_TO: TensorName
TENSOR_NAME_TQ: TensorName
TENSOR_NAME_TV: TensorName
TENSOR_NAME_UK: TensorName
TENSOR_NAME_UNSPECIFIED: TensorName
TENSOR_NAME_UQ: TensorName
TENSOR_NAME_UV: TensorName
TENSOR_NAME_V: TensorName

class InlineDestination(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class InlineSource(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class InputTensor(_message.Message):
    __slots__ = ["handle", "inline", "tensor"]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    handle: str
    inline: InlineSource
    tensor: TensorSpec
    def __init__(self, tensor: _Optional[_Union[TensorSpec, _Mapping]] = ..., inline: _Optional[_Union[InlineSource, _Mapping]] = ..., handle: _Optional[str] = ...) -> None: ...

class KeepDestination(_message.Message):
    __slots__ = ["lease_seconds"]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    lease_seconds: int
    def __init__(self, lease_seconds: _Optional[int] = ...) -> None: ...

class OutputTensor(_message.Message):
    __slots__ = ["inline", "keep", "name"]
    INLINE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    inline: InlineDestination
    keep: KeepDestination
    name: TensorName
    def __init__(self, name: _Optional[_Union[TensorName, str]] = ..., inline: _Optional[_Union[InlineDestination, _Mapping]] = ..., keep: _Optional[_Union[KeepDestination, _Mapping]] = ...) -> None: ...

class TensorChunk(_message.Message):
    __slots__ = ["byte_offset", "data", "tensor_index"]
    BYTE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    TENSOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    byte_offset: int
    data: bytes
    tensor_index: int
    def __init__(self, tensor_index: _Optional[int] = ..., byte_offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ["dtype", "name", "shape"]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    name: TensorName
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[_Union[TensorName, str]] = ..., dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class Layout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class TensorName(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
