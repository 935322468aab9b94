"""Writes reference.safetensors with the `safetensors` package (0.5.3 was used): every dtype that the C++ code reads.

The C++ test reads it, compares the values with the formulas below, and writes it again byte for byte.
"""

import pathlib
import struct

import safetensors
from safetensors import serialize_file


def tensor(dtype: str, shape: list[int], data: bytes) -> dict:
    return {"dtype": dtype, "shape": shape, "data": data}


def main() -> None:
    values = [0.5 * i - 1 for i in range(6)]
    brain = b"".join(struct.pack("<f", x)[2:] for x in values)  # exact: all of them fit in 8 mantissa bits
    tensors = {
        "d": tensor("float64", [2, 3], struct.pack("<6d", *values)),
        "f": tensor("float32", [3, 2], struct.pack("<6f", *values)),
        "h": tensor("float16", [6], struct.pack("<6e", *values)),
        "b": tensor("bfloat16", [1, 6], brain),
        "i": tensor("int32", [4], struct.pack("<4i", -1, 0, 1, 2**31 - 1)),
        "l": tensor("int64", [2], struct.pack("<2q", -(2**40), 2**40)),
        "empty": tensor("float32", [0, 5], b""),
        "scalar": tensor("float32", [], struct.pack("<f", 7)),
    }
    path = pathlib.Path(__file__).with_name("reference.safetensors")
    serialize_file(tensors, path, {"operation": "forward"})
    print(f"{path}: {path.stat().st_size} bytes by safetensors {safetensors.__version__}")


if __name__ == "__main__":
    main()
