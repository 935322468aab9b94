"""flashbob.local(): a server found or started on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import flashbob
import numpy as np
import pytest
from conftest import wait_until
from fake_server import FakeServer
from flashbob.local_server import LocalClient, find_binary


def _alive(pid: int) -> bool:
    """Whether it runs; one that ended and waits for its parent to notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_started_server_computes_and_ends_with_its_client(program: Path, rng: np.random.Generator) -> None:
    with flashbob.local(program) as client:
        assert client.server is not None
        pid = client.server.pid
        assert client.forward(*(rng.standard_normal((1, 2, 5, 4)) for _ in range(3))).o.shape == (1, 2, 5, 4)
    assert not _alive(pid)


def test_started_server_ends_when_its_process_is_killed(program: Path) -> None:
    script = "import sys, flashbob; c = flashbob.local(sys.argv[1]); print(c.server.pid, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        assert _alive(pid)
        user.kill()
    wait_until(lambda: not _alive(pid), f"server {pid} outlives the process that started it")


def test_running_server_is_found(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHBOB_SERVER", fake.address)
    with flashbob.local() as client:
        assert isinstance(client, LocalClient)
        assert client.server is None
        assert client.address == fake.address


def test_program_that_fails_says_why(tmp_path: Path) -> None:
    script = tmp_path / "flashbob-server"
    script.write_text("#!/bin/sh\necho no such device >&2\nexit 3\n")
    script.chmod(0o755)
    with pytest.raises(flashbob.UnavailableError, match=r"exit code 3: no such device"):
        flashbob.local(script)


def test_program_is_found_by_variable_then_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "flashbob-server"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.delenv("FLASHBOB_SERVER_BINARY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_binary() == script
    monkeypatch.setenv("FLASHBOB_SERVER_BINARY", "/elsewhere/flashbob-server")
    assert find_binary() == Path("/elsewhere/flashbob-server")
