"""Tensors as the wire sees them: element type, shape and a flat view of their bytes, of whatever library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from flashbob.v1 import tensor_pb2

# By the contract's number: the short name and the bytes of an element.
_DTYPES = {
    tensor_pb2.DATA_TYPE_BF16: ("bf16", 2),
    tensor_pb2.DATA_TYPE_FP16: ("fp16", 2),
    tensor_pb2.DATA_TYPE_FP32: ("fp32", 4),
    tensor_pb2.DATA_TYPE_FP64: ("fp64", 8),
}
_NUMBERS = {name: number for number, (name, _) in _DTYPES.items()}
ITEM_BYTES = {name: size for name, size in _DTYPES.values()}
_NUMPY_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64"}
# The type of lse and tlse for inputs of each type.
LSE_DTYPES = {"bf16": "fp32", "fp16": "fp32", "fp32": "fp32", "fp64": "fp64"}


@dataclass(frozen=True)
class HostTensor:
    """A tensor in this process's memory; `data` is a flat view of bytes, row major and little endian.

    The view keeps what it looks at alive. Nothing is copied before the bytes go into a message.
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def dtype_number(dtype: str) -> tensor_pb2.DataType:
    """The contract's number of an element type."""
    return _NUMBERS[dtype]


def dtype_name(number: int) -> str:
    """The short name of one of the contract's element types: "bf16", "fp16", "fp32", "fp64"."""
    return _DTYPES[cast("tensor_pb2.DataType", number)][0]


def byte_view(array: np.ndarray[Any, Any]) -> memoryview:
    """A contiguous array's bytes, flat, without a copy; writable where the array is."""
    return array.reshape(-1).view(np.uint8).data


def from_numpy(name: str, array: Any) -> HostTensor:
    """A numpy array as a tensor of the wire; copied only where it is not contiguous or not little endian."""
    array = np.asarray(array)
    dtype = _NUMPY_NAMES.get(array.dtype.name)
    if dtype is None:
        raise TypeError(f"{name} has dtype {array.dtype}: only float64, float32, float16 and bfloat16 are computed")
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    shape = tuple(int(extent) for extent in array.shape)
    return HostTensor(dtype, shape, byte_view(np.ascontiguousarray(array)))


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type of a short name; bfloat16 is that of the package ml_dtypes."""
    if dtype == "bf16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype({"fp16": "<f2", "fp32": "<f4", "fp64": "<f8"}[dtype])


def allocate_numpy(name: str, dtype: str, shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], memoryview]:
    """A fresh array for one output, and the bytes to fill."""
    del name
    array = np.empty(shape, numpy_dtype(dtype))
    return array, byte_view(array)
