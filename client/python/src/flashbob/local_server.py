"""A server on this machine, for notebooks, examples and tests: found, or started and stopped with its client."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import grpc

from flashbob import _config
from flashbob.client import Client
from flashbob.errors import FlashbobError, UnavailableError

BINARY_VARIABLE = "FLASHBOB_SERVER_BINARY"
_FIND_SECONDS = 5.0
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
# Reads until this process, which writes nothing, is gone, however it ended; then ends the server and its folder.
_WATCH = 'read -r line; kill -TERM "$0" 2>/dev/null; rm -rf "$1"'


def find_binary() -> Path | None:
    """The server's program: FLASHBOB_SERVER_BINARY, on the PATH, or in the source tree's build folder."""
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        return Path(named)
    on_path = shutil.which("flashbob-server")
    if on_path:
        return Path(on_path)
    for folder in Path(__file__).resolve().parents:
        candidate = folder / "build" / "flashbob-server"
        if candidate.is_file():
            return candidate
    return None


class LocalServer:
    """A server process on a loopback port (by default a free one).

    Ends with `stop`, with its last reference, and with this process, also where that is killed.
    """

    def __init__(
        self,
        binary: str | os.PathLike[str] | None = None,
        arguments: tuple[str, ...] = (),
        *,
        listen: str = "127.0.0.1:0",
    ) -> None:
        program = Path(binary) if binary is not None else find_binary()
        if program is None:
            raise FileNotFoundError(
                f"no flashbob-server: not on the PATH and not in build/; build it, or name it in {BINARY_VARIABLE}"
            )
        folder = Path(tempfile.mkdtemp(prefix="flashbob-"))
        self.log = folder / "server.log"
        port_file = folder / "port"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(program),
                    *("--listen", listen, "--metrics-listen", "off", "--port-file", str(port_file)),
                    *arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in a notebook is for the notebook.
                start_new_session=True,
            )
        # The pipe is not inherited: it closes with this process, and a child made by fork alone keeps it open.
        watch = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, str(self._process.pid), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.stop = weakref.finalize(self, _stop, self._process, watch, folder)
        try:
            self.address = f"127.0.0.1:{self._wait_for_port(port_file)}"
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def _wait_for_port(self, port_file: Path) -> int:
        give_up = time.monotonic() + _START_SECONDS
        while time.monotonic() < give_up:
            text = port_file.read_text().strip() if port_file.exists() else ""
            if text:
                return int(text)
            if self._process.poll() is not None:
                raise UnavailableError(
                    f"flashbob-server ended with exit code {self._process.returncode}: "
                    f"{self.log.read_text(errors='replace')[-2000:]}",
                    code=grpc.StatusCode.UNAVAILABLE,
                )
            time.sleep(0.01)
        raise UnavailableError(
            f"flashbob-server named no port within {_START_SECONDS} s: {self.log.read_text(errors='replace')[-2000:]}",
            code=grpc.StatusCode.UNAVAILABLE,
        )


class LocalClient(Client):
    """A client that stops the server it came with, where it started one, when it is closed."""

    def __init__(self, address: str, server: LocalServer | None, **options: Any) -> None:
        super().__init__(address, **options)
        self.server = server

    def close(self) -> None:
        """Closes the connection and stops the server that was started for it."""
        super().close()
        if self.server is not None:
            self.server.stop()


def local(
    binary: str | os.PathLike[str] | None = None, *, arguments: tuple[str, ...] = (), **options: Any
) -> LocalClient:
    """A client of a server on this machine, so that a notebook works with no server set up.

    Uses the server that answers at FLASHBOB_SERVER or at 127.0.0.1:50051; where none does, or where `binary` or
    `arguments` say which is wanted, starts one on a free port, which ends with the client or with this process,
    also where that is killed.

    Args:
        binary: the server's program; by default FLASHBOB_SERVER_BINARY, else `flashbob-server` on the PATH, else that
            in the build folder of the source tree.
        arguments: further arguments of that program.
        **options: those of `flashbob.Client`.
    """
    if binary is None and not arguments:
        address = _config.server_address(None)
        probe = Client(address, retry=None, credentials=options.get("credentials"))
        try:
            probe.info(timeout=_FIND_SECONDS)
            return LocalClient(address, None, **options)
        except FlashbobError:
            pass
        finally:
            probe.close()
    server = LocalServer(binary, arguments)
    return LocalClient(server.address, server, **{"credentials": False, **options})


def _stop(process: subprocess.Popen[bytes], watch: subprocess.Popen[bytes], folder: Path) -> None:
    # First, so that it never signals a later process of the same number.
    watch.kill()
    watch.communicate()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)
