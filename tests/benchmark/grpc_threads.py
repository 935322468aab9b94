"""Servers with different --grpc-threads beside each other, under loads that tell for and against few.

    tests/benchmark/grpc_threads.py --bin DIR [--device cuda:0] [--threads 0,2,4,16] [--rounds 3] [--quick] > out.json

DIR holds flashbob-server, flashbob, stored_benchmark, transport_benchmark and wire_benchmark. Every round takes all
servers in turn; the object on stdout has of every figure the median of the rounds, the least and the most.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service import Server, say

# Of all rounds, by load, server and name.
Figures = dict[str, dict[str, dict[str, list[float]]]]

OPERATIONS = ("forward", "double_backward")
SMALL = "1,4,128,64"
CLIENTS = (2, 4, 8, 16, 64)


def run(*command: str | Path) -> dict[str, Any]:
    """What a program prints."""
    return json.loads(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout)


def loads(programs: Path, bare: str, quick: bool) -> dict[str, Callable[[str], dict[str, float]]]:
    """By name what measures a server at an address, in a few figures."""
    seconds = "0.3" if quick else "2"
    # Four uploads at once that are next to no work: 201 MB of inputs and 67 MB of output each. Then computing that a
    # wire in good shape keeps up with.
    streams, computing = ("1,4,256,128", "1,1,512,64") if quick else ("64,16,256,128", "1,1,131072,64")

    def inline(operation: str, server: str) -> dict[str, float]:
        small = programs / "transport_benchmark", "small"
        found = run(*small, "--server", server, "--bare", bare, "--op", operation, "--rounds", "6")
        return {"served_to_echo": found["served_to_echo"], "p50_ms": found["served"]["p50_ms"]}

    def stored(operation: str, server: str) -> dict[str, float]:
        stored_benchmark = programs / "stored_benchmark"
        found = run(stored_benchmark, "--op", operation, "--server", server, "--shape", SMALL, "--seconds", "0.6")
        return {name: found[name] for name in ("p50_over_empty_call_ms", "empty_call_p50_ms")}

    def clients(count: int, server: str) -> dict[str, float]:
        small = programs / "wire_benchmark", "--server", server, "small"
        found = run(*small, "--clients", str(count), "--seconds", seconds)
        return {name: found[name] for name in ("requests_per_second", "p50_ms", "p99_ms")}

    def bench(operation: str, shape: str, concurrency: int, server: str) -> dict[str, float]:
        load = ("--op", operation, "--dtype", "bf16", "--shape", shape, "--concurrency", str(concurrency))
        found = run(programs / "flashbob", "bench", "--server", server, "--json", "--duration", seconds, *load)
        return {name: found[name] for name in ("requests", "gigabytes_per_second", "tflops", "p50_ms", "p99_ms")}

    each: dict[str, Callable[[str], dict[str, float]]] = {}
    for operation in OPERATIONS:
        each[f"{operation} {SMALL} inline"] = functools.partial(inline, operation)
        each[f"{operation} {SMALL} stored"] = functools.partial(stored, operation)
    for count in CLIENTS:
        each[f"{count} clients"] = functools.partial(clients, count)
    for operation, shape, concurrency in (("forward", streams, 4), ("double_backward", computing, 3)):
        each[f"{operation} {shape} inline, {concurrency} in flight"] = functools.partial(
            bench, operation, shape, concurrency
        )
    return each


def measure(programs: Path, servers: dict[str, Server], bare: str, rounds: int, quick: bool) -> Figures:
    """All figures of all rounds, by load and server."""
    figures: Figures = {}
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        for load, figures_of in loads(programs, bare, quick).items():
            for threads, server in servers.items():
                named = figures.setdefault(load, {}).setdefault(threads, {})
                for name, value in figures_of(server.address).items():
                    named.setdefault(name, []).append(value)
    return figures


def main() -> int:
    """Measures all loads on all servers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--threads", default="0,2,4,16")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small loads, to try the script")
    options = parser.parse_args()
    program = options.bin / "flashbob-server"
    memory = ("--host-memory-bytes", "8GiB", "--store-memory-bytes", "2GiB")
    servers: dict[str, Server] = {}
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as at_the_end:
        for threads in options.threads.split(","):
            servers[threads] = Server(program, options.device, "--grpc-threads", threads, *memory)
            at_the_end.callback(servers[threads].process.wait)
            at_the_end.callback(servers[threads].process.terminate)
        port_file = Path(scratch) / "port"
        command = [options.bin / "transport_benchmark", "bare", "--device", options.device, "--port-file", port_file]
        bare = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        at_the_end.callback(bare.communicate)  # ends with its input
        while not port_file.exists() or not port_file.read_text().strip():
            if bare.poll() is not None:
                raise SystemExit("the bare server did not start")
            time.sleep(0.01)
        address = f"127.0.0.1:{port_file.read_text().strip()}"
        figures = measure(options.bin, servers, address, options.rounds, options.quick)
    shown = {
        f"{load}, --grpc-threads {threads}": {
            name: [round(of(values), 4) for of in (statistics.median, min, max)] for name, values in named.items()
        }
        for load, by_server in figures.items()
        for threads, named in by_server.items()
    }
    print(json.dumps({"command": " ".join(sys.argv), "rounds": options.rounds, "median_least_most": shown}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
