"""What the tests share: the stand-in server, and a real one where its program is built.

FLASHBOB_SERVER_BINARY names the program; where it is set, or build/flashbob-server exists, tests of the `server`
fixture run against that, else against the stand-in. run.sh sets it, so that in continuous integration they run against
the real one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import flashbob
import numpy as np
import pytest
from fake_server import FakeServer
from flashbob.local_server import LocalServer

TOP = Path(__file__).resolve().parents[3]


def server_binary() -> Path | None:
    """The real server's program, where there is one; one that is named must exist."""
    named = os.environ.get("FLASHBOB_SERVER_BINARY")
    path = Path(named) if named else TOP / "build" / "flashbob-server"
    if named and not path.is_file():
        raise FileNotFoundError(f"FLASHBOB_SERVER_BINARY={named} does not exist")
    return path if path.is_file() else None


def pytest_report_header() -> str:
    """Says what the `server` fixture is."""
    return f"server under test: {server_binary() or 'the stand-in of fake_server.py'}"


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A stand-in of the test's own."""
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """The address of the server under test, shared by all."""
    address = os.environ.get("FLASHBOB_TEST_SERVER")
    binary = server_binary()
    if address:
        yield address
    elif binary is not None:
        local = LocalServer(binary)
        yield local.address
        local.stop()
    else:
        stand_in = FakeServer(chunk_bytes=1 << 20)
        yield stand_in.address
        stand_in.stop()


@pytest.fixture(scope="session")
def client(server: str) -> Iterator[flashbob.Client]:
    """A client of the server under test, also the default one."""
    with flashbob.Client(server) as made:
        flashbob.set_default_client(made)
        yield made
        flashbob.set_default_client(None)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers; the seed is drawn anew for each run and printed where a test fails."""
    seed = int(os.environ.get("FLASHBOB_TEST_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"FLASHBOB_TEST_SEED={seed}")
    return np.random.default_rng(seed)
