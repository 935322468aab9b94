"""How close the Python client comes to the C++ one: throughput over loopback, and what a small call costs beyond it.

    build/python-venv/bin/python tests/client/python/bench.py [--bin DIR] [--seconds S] [--rounds N]

Starts DIR/flashbob-server (of build/, unless told) and measures both clients against it in turn, several rounds; prints
one JSON object of the best rounds. `wire` is the mean time of a call less what the server queued and computed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import flashbob
import grpc
import numpy as np
from flashbob._calls import forward_call
from flashbob.local_server import LocalServer

BUILD = Path(__file__).resolve().parents[3] / "build"
LARGE, SMALL = (1, 512, 32, 256), (1, 4, 128, 64)


def cpp(programs: Path, address: str, shape: tuple[int, ...], seconds: float) -> dict[str, float]:
    """What `flashbob bench` says of the forward pass in fp32."""
    command = [programs / "flashbob", "bench", "--server", address, "--op", "forward", "--dtype", "fp32", "--json"]
    command += ["--shape", ",".join(map(str, shape)), "--duration", str(seconds), "--concurrency", "1"]
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return {"wire_ms": result["wire_ms"], "p50_ms": result["p50_ms"]}


def python(client: flashbob.Client, shape: tuple[int, ...], seconds: float) -> dict[str, float]:
    """The same calls by this package."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    client.forward(q, k, v)
    wire, total = [], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        timings = client.run(forward_call(q, k, v, {})).timings
        total.append(time.perf_counter() - start)
        wire.append(total[-1] - timings.queue - timings.compute)
    return {"wire_ms": statistics.fmean(wire) * 1e3, "p50_ms": statistics.median(total) * 1e3}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=Path, default=BUILD)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chunk-bytes", type=int, default=1 << 20)
    options = parser.parse_args()
    server = LocalServer(options.bin / "flashbob-server")
    result: dict[str, Any] = {"grpcio": grpc.__version__}
    with flashbob.Client(server.address, chunk_bytes=options.chunk_bytes) as client:
        for name, shape in (("large", LARGE), ("small", SMALL)):
            rounds = [
                (cpp(options.bin, server.address, shape, options.seconds), python(client, shape, options.seconds))
                for _ in range(options.rounds)
            ]
            result[name] = {
                "shape": shape,
                "cpp": min((c for c, _ in rounds), key=lambda c: c["wire_ms"]),
                "python": min((p for _, p in rounds), key=lambda p: p["wire_ms"]),
            }
    server.stop()
    large, small = result["large"], result["small"]
    result["throughput_ratio"] = large["cpp"]["wire_ms"] / large["python"]["wire_ms"]
    result["small_call_adds_ms"] = small["python"]["p50_ms"] - small["cpp"]["p50_ms"]
    print(json.dumps(result))


if __name__ == "__main__":
    main()
