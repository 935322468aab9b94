"""Messages made and read by hand are those of the generated code."""

from __future__ import annotations

import pytest
from flashbob import _wire
from flashbob._tensors import HostTensor, allocate_numpy
from flashbob.errors import ProtocolError
from flashbob.problem import Problem
from flashbob.v1 import attention_service_pb2 as service
from flashbob.v1 import tensor_pb2
from hypothesis import given
from hypothesis import strategies as st


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**62), st.binary(max_size=500))
def test_encoded_chunk_parses_as_the_contract_says(index: int, offset: int, data: bytes) -> None:
    request = service.ComputeRequest.FromString(_wire.encode_chunk(index, offset, memoryview(data)))
    assert request.WhichOneof("payload") == "chunk"
    assert (request.chunk.tensor_index, request.chunk.byte_offset, request.chunk.data) == (index, offset, data)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**62), st.binary(max_size=500))
def test_decoded_chunk_is_what_the_generated_code_wrote(index: int, offset: int, data: bytes) -> None:
    chunk = tensor_pb2.TensorChunk(tensor_index=index, byte_offset=offset, data=data)
    message = service.ComputeResponse(chunk=chunk).SerializeToString()
    got_index, got_offset, got = _wire.decode_chunk(message)
    assert (got_index, got_offset, bytes(got)) == (index, offset, data)


@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_decode_or_raise_a_protocol_error(junk: bytes) -> None:
    try:
        _wire.decode_chunk(b"\x22" + junk)
    except ProtocolError:
        return
    # What was accepted, the generated code accepts too.
    service.ComputeResponse.FromString(b"\x22" + junk)


def _receiver(shape: tuple[int, ...] = (2, 3)) -> _wire.Receiver[object]:
    spec = tensor_pb2.TensorSpec(name=tensor_pb2.TENSOR_NAME_O, dtype=tensor_pb2.DATA_TYPE_FP64, shape=shape)
    return _wire.Receiver([spec], [True], allocate_numpy)


def _chunk(index: int, offset: int, data: bytes) -> bytes:
    chunk = tensor_pb2.TensorChunk(tensor_index=index, byte_offset=offset, data=data)
    return service.ComputeResponse(chunk=chunk).SerializeToString()


@pytest.mark.parametrize(
    ("index", "offset", "size", "numbers"),
    [(1, 0, 8, "tensor 1 of 1"), (0, 8, 8, "8..16 of o"), (0, 0, 49, "0..49 of o, which has 48")],
)
def test_misplaced_chunk_is_refused_with_its_numbers(index: int, offset: int, size: int, numbers: str) -> None:
    with pytest.raises(ProtocolError, match=numbers):
        _receiver().feed(_chunk(index, offset, bytes(size)))


def test_short_reply_is_refused_with_its_numbers() -> None:
    receiver = _receiver()
    receiver.feed(_chunk(0, 0, bytes(40)))
    with pytest.raises(ProtocolError, match="o ended after 40 of 48 bytes"):
        receiver.finish()


def test_chunks_are_contiguous_bounded_and_complete() -> None:
    data = bytes(range(256)) * 4
    tensor = HostTensor("fp64", (128,), memoryview(data))
    call = _wire.ComputeCall("forward", Problem(), {"q": tensor, "k": tensor})
    messages = [service.ComputeRequest.FromString(m) for m in call.messages(100)]
    assert messages[0].WhichOneof("payload") == "spec"
    for index in (0, 1):
        chunks = [m.chunk for m in messages[1:] if m.chunk.tensor_index == index]
        assert [c.byte_offset for c in chunks] == list(range(0, 1024, 100))
        assert b"".join(c.data for c in chunks) == data


def _fp32(entry: service.ResultTensor, name: tensor_pb2.TensorName, length: int) -> None:
    entry.tensor.name, entry.tensor.dtype = name, tensor_pb2.DATA_TYPE_FP32
    entry.tensor.shape.append(length)


def test_brief_answer_is_asked_for_and_taken() -> None:
    tensor = HostTensor("fp64", (8,), memoryview(bytes(64)))
    call = _wire.ComputeCall("forward", Problem(), {"q": tensor})
    assert service.ComputeRequest.FromString(next(call.messages(128))).spec.brief_answer

    reply = _wire.ComputeReply("mine", allocate_numpy, None)
    answer = service.ComputeResponse()
    answer.result.accepted.estimated_flops = 100.0
    _fp32(answer.result.tensors.add(data=b"abcd"), tensor_pb2.TENSOR_NAME_O, 1)
    reply.feed(answer.SerializeToString())
    whole = reply.finish()
    assert whole.tensors["o"].tobytes() == b"abcd"
    assert whole.flops == 100.0


def test_first_outputs_come_within_the_result_and_the_rest_in_chunks() -> None:
    reply = _wire.ComputeReply("mine", allocate_numpy, None)
    answer = service.ComputeResponse()
    answer.result.accepted.request_id = "theirs"
    _fp32(answer.result.tensors.add(handle="here"), tensor_pb2.TENSOR_NAME_DQ, 1)
    _fp32(answer.result.tensors.add(data=b"abcd"), tensor_pb2.TENSOR_NAME_DK, 1)
    _fp32(answer.result.tensors.add(), tensor_pb2.TENSOR_NAME_DV, 2)
    reply.feed(answer.SerializeToString())
    reply.feed(_chunk(2, 0, b"efgh"))
    reply.feed(_chunk(2, 4, b"ijkl"))
    whole = reply.finish()
    assert {name: tensor.tobytes() for name, tensor in whole.tensors.items()} == {"dk": b"abcd", "dv": b"efghijkl"}
    assert {name: kept.handle for name, kept in whole.kept.items()} == {"dq": "here"}
    assert whole.request_id == "theirs"


@pytest.mark.parametrize(("data", "numbers"), [(b"abcd", "4 of 8 bytes"), (b"abcdefghi", "0..9 of o, which has 8")])
def test_output_within_the_result_of_another_length_is_refused(data: bytes, numbers: str) -> None:
    reply = _wire.ComputeReply("mine", allocate_numpy, None)
    answer = service.ComputeResponse()
    _fp32(answer.result.tensors.add(data=data), tensor_pb2.TENSOR_NAME_O, 2)
    with pytest.raises(ProtocolError, match=numbers):
        reply.feed(answer.SerializeToString())
        reply.finish()
