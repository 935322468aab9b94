"""A server that speaks TLS. Needs the program openssl."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import flashbob
import grpc
import numpy as np
import pytest
from fake_server import FakeServer


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A certificate that vouches for itself, beside its key."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    command += " -addext subjectAltName=IP:127.0.0.1,DNS:localhost -keyout key.pem -out ca.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "ca.pem"


@pytest.fixture
def secure(authority: Path) -> Iterator[FakeServer]:
    key = authority.with_name("key.pem").read_bytes()
    server = FakeServer(credentials=grpc.ssl_server_credentials([(key, authority.read_bytes())]))
    yield server
    server.stop()


def test_authorities_named_in_the_environment_are_trusted(
    secure: FakeServer, authority: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHBOB_TLS_CA", str(authority))
    monkeypatch.setenv("FLASHBOB_TOKEN", "secret")
    with flashbob.Client(secure.address) as client:
        stored = client.put({name: rng.standard_normal((1, 2, 5, 4)) for name in "qkv"})
        assert client.forward(**stored).o.shape == (1, 2, 5, 4)
    assert secure.metadata[0]["authorization"] == "Bearer secret"


def test_unknown_authorities_and_clear_text_are_not(
    secure: FakeServer, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHBOB_TLS_CA", str(authority))
    for credentials in (False, grpc.ssl_channel_credentials()):
        with (
            flashbob.Client(secure.address, credentials=credentials, retry=None) as client,
            pytest.raises(flashbob.UnavailableError),
        ):
            client.info()


def test_server_started_here_speaks_clear_text_all_the_same(
    authority: Path, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHBOB_TLS_CA", str(authority))
    with flashbob.local(program) as client:
        assert client.info().version
