"""What the tests share: the stand-in server, and a real one where its program is built.

FLASHBOB_SERVER_BINARY names the program; where it is set, or build/flashbob-server exists, tests of the `server`
fixture run against that, else against the stand-in. run.sh sets it, so that in continuous integration they run against
the real one.

What a file needs beyond grpcio, protobuf, numpy and hypothesis stands in NEEDS; where that is not installed the file is
left out, and the header says so. A test may skip only for want of a GPU: any other skip fails the run.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import flashbob
import hypothesis
import numpy as np
import pytest
from fake_server import FakeServer
from flashbob.local_server import LocalServer

TOP = Path(__file__).resolve().parents[3]
WAIT_SECONDS = 120
# Before torch is loaded, and for the programs that tests start: its tensors here are small, and where cores are few and
# busy its threads wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# (package, least version) by file. Debian 12 has torch 1.13 and no jax.
NEEDS = {
    "test_examples.py": ("torch", (2, 1)),
    "test_jax.py": ("jax", (0, 4)),
    "test_torch.py": ("torch", (1, 13)),
    "test_torch_func.py": ("torch", (2, 4)),
    "test_torch_gpu.py": ("torch", (2, 4)),
    "test_torch_math.py": ("torch", (2, 5)),
    "test_torch_residuals.py": ("torch", (1, 13)),
    "test_training.py": ("torch", (1, 13)),
}


def _version(package: str) -> tuple[int, ...]:
    """Major and minor; empty where it is not installed."""
    with contextlib.suppress(ImportError):
        found = re.match(r"(\d+)\.(\d+)", importlib.import_module(package).__version__)
        return tuple(int(part) for part in found.groups()) if found else ()
    return ()


_VERSIONS = {package: _version(package) for package in sorted({package for package, _ in NEEDS.values()})}
collect_ignore = [file for file, (package, least) in NEEDS.items() if _VERSIONS[package] < least]

# A loaded machine is slow, and no example of a property is worse for it.
hypothesis.settings.register_profile("flashbob", deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
hypothesis.settings.load_profile("flashbob")

_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes what skipped for another reason than a GPU."""
    if report.skipped and "needs a GPU" not in str(report.longrepr):
        _skipped.append(f"{report.nodeid}: {report.longrepr}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fails the run where something skipped that may not."""
    if _skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says why."""
    for line in _skipped:
        terminalreporter.write_line(f"only tests that need a GPU may skip: {line}", red=True)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Returns once it holds; fails with `what` where it never does."""
    give_up = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < give_up, what
        threading.Event().wait(0.005)


# performance.md's bars of relative error, by the kind of device.
_BARS = {
    "cpu": {"float64": 1e-12, "float32": 2e-6, "float16": 3e-4, "bfloat16": 2.0e-3},
    "cuda": {"float64": 1e-12, "float32": 2e-6, "float16": 4e-4, "bfloat16": 2.7e-3},
}


def server_arguments() -> tuple[str, ...]:
    """Further arguments of every server under test: FLASHBOB_TEST_SERVER_ARGUMENTS, as in "--devices cpu"."""
    return tuple(os.environ.get("FLASHBOB_TEST_SERVER_ARGUMENTS", "").split())


def server_binary() -> Path | None:
    """The real server's program, where there is one; one that is named must exist."""
    named = os.environ.get("FLASHBOB_SERVER_BINARY")
    path = Path(named) if named else TOP / "build" / "flashbob-server"
    if named and not path.is_file():
        raise FileNotFoundError(f"FLASHBOB_SERVER_BINARY={named} does not exist")
    return path if path.is_file() else None


def pytest_report_header() -> list[str]:
    """Says what the `server` fixture is, and what is left out."""
    left_out = [
        f"left out: {file} needs {package} >= {'.'.join(map(str, least))}"
        for file, (package, least) in NEEDS.items()
        if file in collect_ignore
    ]
    return [f"server under test: {server_binary() or 'the stand-in of fake_server.py'}", *left_out]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    """A stand-in of the test's own."""
    server = FakeServer()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def local_server() -> Iterator[LocalServer | None]:
    """The real server's process, where it was started here."""
    binary = server_binary()
    if binary is None or os.environ.get("FLASHBOB_TEST_SERVER"):
        yield None
        return
    local = LocalServer(binary, server_arguments())
    yield local
    local.stop()


@pytest.fixture(scope="session")
def server(local_server: LocalServer | None) -> Iterator[str]:
    """The address of the server under test, shared by all."""
    address = os.environ.get("FLASHBOB_TEST_SERVER")
    if address:
        yield address
    elif local_server is not None:
        yield local_server.address
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
def program(tmp_path: Path) -> Path:
    """A server program: the real one, or one that runs the stand-in."""
    binary = server_binary()
    if binary is not None:
        return binary
    script = tmp_path / "flashbob-server"
    script.write_text(
        f"#!{sys.executable}\nimport sys, signal\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from fake_server import FakeServer\nserver = FakeServer()\n"
        "open(sys.argv[sys.argv.index('--port-file') + 1], 'w').write(str(server.port))\nsignal.pause()\n"
    )
    script.chmod(0o755)
    return script


@pytest.fixture(scope="session")
def bars(client: flashbob.Client) -> dict[str, float]:
    """Bars of relative error by dtype.

    Those of half precisions hold on GPUs for full masks from 1,024 rows on; for the smaller problems here, which
    average less, twice that.
    """
    devices = client.info().devices
    if any(device.name.startswith("cuda") for device in devices):
        return {kind: bar * (2 if kind in ("float16", "bfloat16") else 1) for kind, bar in _BARS["cuda"].items()}
    return _BARS["cpu"]


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers; the seed is drawn anew for each run and printed where a test fails."""
    seed = int(os.environ.get("FLASHBOB_TEST_SEED", np.random.SeedSequence().entropy % (1 << 32)))
    print(f"FLASHBOB_TEST_SEED={seed}")
    return np.random.default_rng(seed)
