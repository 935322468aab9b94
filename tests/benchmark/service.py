"""The whole service on one machine: server and client over loopback, checked, measured, and stopped under load.

    tests/benchmark/service.py --bin DIR [--devices LIST] [--seconds S] [--quick | --several] > service.json

DIR holds flashbob-server, flashbob and stored_benchmark (build/, or bin/ of deploy/bundle.sh), and for ratios against
the same kernels in process cuda_attention_benchmark. Needs Python alone. One JSON object on stdout, what it is at on
stderr; exit code 1 where a check fails.

Of each shape: served requests per second, and their ratio to 1 / (device time of the same computation in process). The
request carries no o and lse, so both recompute them.

--several measures something else: a client for each device of LIST (cuda:0,cuda:1), and one whose requests are split
over all of them, each over one client on the first device. All tensors lie on the server.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

# Batch, heads, tokens, head dim; requests in flight.
SHAPES = [
    ("1,4,128,64", (1, 16)),
    ("1,16,4096,64", (1, 4)),
    ("1,16,16384,128", (1, 2)),
    ("1,1,131072,64", (1, 2, 3)),
]
QUICK_SHAPES = [("1,2,64,32", (1, 2))]


def say(text: str) -> None:
    """Tells on stderr what is going on."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


class Server:
    """flashbob-server as a child process, on free ports."""

    def __init__(self, program: Path, devices: str, *arguments: str) -> None:
        self.scratch = tempfile.TemporaryDirectory()
        self.log_path = Path(self.scratch.name) / "log"
        port_file = Path(self.scratch.name) / "port"
        self.command = [str(program), "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"]
        self.command += ["--devices", devices, "--log-format", "json", *arguments]
        began = time.monotonic()
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen([*self.command, "--port-file", str(port_file)], stderr=log)
        while not port_file.exists():
            if self.process.poll() is not None or time.monotonic() - began > 60:
                raise SystemExit(f"the server did not start:\n{self.log_path.read_text()}")
            time.sleep(0.01)
        self.seconds_to_start = time.monotonic() - began
        self.address = f"127.0.0.1:{port_file.read_text().strip()}"

    def log(self, message: str) -> list[dict[str, Any]]:
        """The log's lines of one kind."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["message"] == message]

    def metrics(self) -> dict[str, float]:
        """Memory figures of /metrics."""
        port = self.log("serving")[0]["metrics_port"]
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        found = re.findall(r"^(flashbob_\w*bytes\w*(?:\{[^}]*\})?) (\S+)$", page, re.MULTILINE)
        return {name: float(value) for name, value in found if "bucket" not in name}


def client(program: Path, *arguments: str) -> tuple[int, dict[str, Any], float]:
    """Runs the client with --json: exit code, object, seconds."""
    began = time.monotonic()
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        say(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}{done.stdout[:2000]}")
    try:
        return done.returncode, json.loads(done.stdout), seconds
    except json.JSONDecodeError:
        return done.returncode, {}, seconds


def check(program: Path, *arguments: str) -> dict[str, Any]:
    """`flashbob check`, in few numbers."""
    code, report, seconds = client(program, "check", *arguments)
    cases = report.get("cases", [])
    worst: dict[str, float] = {}
    for case in cases:
        for output in case["outputs"].values():
            error = output["error"]
            share = error / output["bar"] if error is not None else float("inf")
            worst[case["dtype"]] = max(worst.get(case["dtype"], 0), share)
    failed = [case for case in cases if not case["ok"]]
    return {
        "command": " ".join(["flashbob", "check", *arguments]),
        "exit_code": code,
        "cases": len(cases),
        "failed": failed[:10],
        "largest_error_over_bar": {dtype: round(share, 3) for dtype, share in worst.items()},
        "seconds": round(seconds, 2),
    }


def in_process(program: Path, shape: str, seconds: float) -> float | None:
    """Device time of the computation that is served, in milliseconds; None without the benchmark.

    Run for as long as the served one is: a GPU's clock sinks within its first second of load.
    """

    def median_of(reps: int) -> float | None:
        command = [str(program), "--ops", "double_backward", "--recompute", "--reps", str(reps), shape]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            say(f"no figures in process: {done.stderr}")
            return None
        return float(json.loads(done.stdout)["results"][0]["ms"])

    first = median_of(10) if program.exists() else None
    if first is None:
        return None
    reps = min(max(10, round(seconds * 1e3 / first)), 5000)
    median = median_of(reps)
    say(f"{shape} in process: {median} ms, median of {reps}")
    return median


def bench(program: Path, shape: str, in_flight: int, seconds: float, *where: str) -> dict[str, Any]:
    """`flashbob bench` of double backward in bf16."""
    arguments = ["bench", "--op", "double_backward", "--dtype", "bf16", "--shape", shape]
    arguments += ["--concurrency", str(in_flight), "--duration", str(seconds), *where]
    _, result, _ = client(program, *arguments)
    say(f"{shape} {where[0]} x{in_flight}: {result.get('tflops', 0):.4g} TFLOP/s, p50 {result.get('p50_ms', 0):.4g} ms")
    return {"in_flight": in_flight, "command": " ".join(["flashbob", *arguments]), **result}


def stored(program: Path, shape: str, in_flight: int, seconds: float, server: str) -> dict[str, Any]:
    """Double backward in bf16 of tensors that lie on the server and stay there."""
    command = [str(program), "--server", server, "--shape", shape]
    command += ["--in-flight", str(in_flight), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say(f"{' '.join(command)}: {done.stderr}")
        return {"in_flight": in_flight, "failed": done.stderr}
    result: dict[str, Any] = json.loads(done.stdout)
    say(f"{shape} stored x{in_flight}: p50 {result['p50_ms']:.4g} ms")
    return result


def several_devices(programs: Path, devices: list[str], shape: str, seconds: float) -> dict[str, Any]:
    """Double backwards a second of stored tensors: one device, a client for each, and requests split over all."""
    result: dict[str, Any] = {"command": " ".join(sys.argv), "shape": shape, "devices": devices}
    for name, used, clients, arguments in (
        ("one", devices[:1], 1, ["--split-seconds", "inf"]),
        ("clients", devices, len(devices), ["--split-seconds", "inf"]),
        ("split", devices, 1, []),
    ):
        server = Server(programs / "flashbob-server", ",".join(used), *arguments)
        with concurrent.futures.ThreadPoolExecutor(clients) as pool:
            calls = [
                pool.submit(stored, programs / "stored_benchmark", shape, 1, seconds, server.address)
                for _ in range(clients)
            ]
            runs = [call.result() for call in calls]
        server.process.terminate()
        server.process.wait(timeout=60)
        rate = sum(run.get("requests", 0) / run.get("seconds", 1) for run in runs)
        result[name] = {"server": " ".join(server.command), "runs": runs, "requests_per_second": round(rate, 3)}
    for name in ("clients", "split"):
        result[f"{name}_over_one"] = round(
            result[name]["requests_per_second"] / result["one"]["requests_per_second"], 3
        )
    return result


def stop_under_load(server: Server, program: Path, shape: str) -> dict[str, Any]:
    """SIGTERM while clients keep the server busy."""
    arguments = ["bench", "--op", "double_backward", "--dtype", "bf16", "--shape", shape]
    arguments += ["--concurrency", "4", "--duration", "60", "--server", server.address]
    load = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(2)  # whatever is under way then is under way
    before = len(server.log("call"))
    began = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    code = server.process.wait(timeout=60)
    seconds = time.monotonic() - began
    _, error = load.communicate(timeout=60)
    calls = server.log("call")[before:]
    ends: dict[str, int] = {}
    for call in calls:
        ends[call["code"]] = ends.get(call["code"], 0) + 1
    return {
        "load": " ".join(["flashbob", *arguments]),
        "server_exit_code": code,
        "seconds_to_exit": round(seconds, 3),
        "calls_ended_after_sigterm": ends,
        "client_said": error.strip().splitlines()[-1:],
    }


def main() -> int:
    """Runs all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--devices", default="all")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--quick", action="store_true", help="a tiny shape and no corners: to try the script")
    parser.add_argument("--several", action="store_true", help="measure several devices against one instead")
    parser.add_argument("--shape", default="1,16,16384,128", help="of --several")
    options = parser.parse_args()
    if options.several:
        several = several_devices(options.bin, options.devices.split(","), options.shape, options.seconds)
        print(json.dumps(several, indent=1))
        return 0
    program = options.bin / "flashbob"
    shapes = QUICK_SHAPES if options.quick else SHAPES

    server = Server(options.bin / "flashbob-server", options.devices)
    where = ("--server", server.address)
    say(f"serving at {server.address} after {server.seconds_to_start:.2f} s")
    result: dict[str, Any] = {
        "command": " ".join(sys.argv),
        "server": " ".join(server.command),
        "seconds_to_start": round(server.seconds_to_start, 2),
        "devices": server.log("device"),
        "info": client(program, "info", *where)[1],
        "checks": [check(program, *where)],
    }
    if not options.quick:
        result["checks"].append(check(program, "--full", *where))
    for each in result["checks"]:
        say(f"{each['command']}: {each['cases']} cases, {len(each['failed'])} failed, {each['seconds']} s")

    result["shapes"] = []
    for shape, flights in shapes:
        alone = in_process(options.bin / "cuda_attention_benchmark", shape, options.seconds)
        entry: dict[str, Any] = {"shape": shape, "in_process_ms": alone}
        entry["served"] = [bench(program, shape, n, options.seconds, *where) for n in flights]
        entry["stored"] = [
            stored(options.bin / "stored_benchmark", shape, n, options.seconds, server.address) for n in flights
        ]
        entry["embedded"] = bench(program, shape, 1, options.seconds, "--embedded")
        if alone is not None:
            for served in entry["served"] + entry["stored"]:
                rate = served.get("requests", 0) / served.get("seconds", 1)
                served["ratio_to_in_process"] = round(rate * alone / 1e3, 4)
        result["shapes"].append(entry)
    result["memory"] = server.metrics()
    result["sigterm_under_load"] = stop_under_load(server, program, shapes[min(1, len(shapes) - 1)][0])
    result["log_errors"] = server.log("device lost") + server.log("cannot start")
    print(json.dumps(result, indent=1))
    good = all(each["exit_code"] == 0 for each in result["checks"])
    return 0 if good and result["sigterm_under_load"]["server_exit_code"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
