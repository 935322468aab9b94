"""The generated messages are those of proto/flashbob/v1."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import flashbob
import pytest
from flashbob.v1 import attention_service_pb2, error_details_pb2, problem_pb2, tensor_pb2
from google.protobuf import descriptor_pb2

TOP = Path(__file__).resolve().parents[3]
MODULES = {m.DESCRIPTOR.name: m for m in (attention_service_pb2, error_details_pb2, problem_pb2, tensor_pb2)}


@pytest.mark.skipif(shutil.which("protoc") is None, reason="needs protoc; tests/run.sh installs it")
def test_committed_messages_are_those_of_the_contract(tmp_path: Path) -> None:
    compiled = tmp_path / "contract.binpb"
    protos = sorted((TOP / "proto" / "flashbob" / "v1").glob("*.proto"))
    subprocess.run(["protoc", "-I", TOP / "proto", f"--descriptor_set_out={compiled}", *protos], check=True)
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    assert {file.name for file in files} == set(MODULES), "a proto file was added: run client/python/generate.sh"
    for file in files:
        committed = descriptor_pb2.FileDescriptorProto()
        MODULES[file.name].DESCRIPTOR.CopyToProto(committed)
        committed.ClearField("source_code_info")
        for message in _messages(file):
            for field in message.field:
                field.ClearField("json_name")
        for message in _messages(committed):
            for field in message.field:
                field.ClearField("json_name")
        assert committed == file, f"{file.name} changed: run client/python/generate.sh"


def _messages(scope: object) -> list[descriptor_pb2.DescriptorProto]:
    found = []
    queue = list(scope.message_type)  # type: ignore[attr-defined]
    while queue:
        found.append(queue.pop())
        queue.extend(found[-1].nested_type)
    return found


def test_version_is_the_packages() -> None:
    assert f'version = "{flashbob.__version__}"' in (TOP / "client" / "python" / "pyproject.toml").read_text()
