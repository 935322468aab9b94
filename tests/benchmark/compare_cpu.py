"""Measure the CPU engine's bars in one run.

Its double backward against the best tile-product rate of Eigen, oneDNN and OpenBLAS on the same cores, and against
PyTorch's double backward of materialised attention.

Rounds of all of them follow each other, so that what else the machine does hits all; each side's best counts, by the
wall. The same ratios by CPU time are given beside, for machines that are not quiet. Prints a summary and writes
everything measured to --out; exit 1 where a bar is missed. README.md here has the commands.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

RATE_BAR = 0.75
TORCH_BAR = 2.0


def cpu_flags():
    """What this machine's CPU can do, in the names of /proc/cpuinfo."""
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


def run(command, **environment):
    """The JSON that a command prints."""
    done = subprocess.run(
        [str(word) for word in command],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return json.loads(done.stdout)


def main():
    """The command; its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default="build", type=pathlib.Path)
    parser.add_argument("--shape", default="1,4,2048,64", help="B,H,N,D")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=10, help="of each computation in a round")
    parser.add_argument("--torch-python", default="/usr/bin/python3", help="an interpreter that has torch")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()

    flags = cpu_flags()
    wide = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} <= flags
    # OpenBLAS knows chips by name, and takes a new one for an old one; these are its kernels for the instructions.
    core_type = "SkylakeX" if wide else "Haswell"
    threads = str(len(os.sched_getaffinity(0)))
    tiles = options.build / f"tile_product_benchmark_{'v4' if wide else 'v3'}"
    attention = [options.build / "attention_benchmark", "--shape", options.shape, "--runs", options.runs]
    torch_script = pathlib.Path(__file__).with_name("torch_double_backward.py")

    measured = {"tile_products": [], "engine": [], "torch": []}
    for _ in range(options.rounds):
        for library in ("onednn", "openblas", "eigen"):
            command = [tiles, "--library", library, "--threads", threads]
            measured["tile_products"].append(run(command, OPENBLAS_CORETYPE=core_type))
        for given in ([], ["--forward-given"]):
            measured["engine"].append(run([*attention, *given]))
        command = [options.torch_python, torch_script, "--shape", options.shape, "--threads", threads]
        measured["torch"].append(run(command, OPENBLAS_CORETYPE=core_type, OPENBLAS_NUM_THREADS=threads))

    ceiling = max(measured["tile_products"], key=lambda each: each["best_gflops"])
    torch_ms = min(each["double_backward_best_ms"] for each in measured["torch"])
    summary = {
        "machine": measured["engine"][0]["device"],
        "threads": int(threads),
        "shape": options.shape,
        "best_tile_product_gflops": ceiling["best_gflops"],
        "best_tile_product_library": ceiling["library"],
        "torch_double_backward_ms": torch_ms,
        "torch_forward_and_backward_ms": min(each["forward_and_backward_best_ms"] for each in measured["torch"]),
    }
    kept = True
    for name, given in (("o_and_lse_left_out", False), ("o_and_lse_given", True)):
        runs = [each["computations"][0] for each in measured["engine"]]
        runs = [each for each in runs if each["forward_given"] == given]
        best = min(runs, key=lambda each: each["best_ms"])
        rate = best["best_gflops"] / ceiling["best_gflops"]
        speedup = torch_ms / best["best_ms"]
        kept = kept and rate >= RATE_BAR and speedup >= TORCH_BAR
        by_cpu_time = max(each["best_gflops_by_cpu_time"] for each in runs)
        torch_cpu_ms = min(each["double_backward_best_ms_by_cpu_time"] for each in measured["torch"])
        summary[name] = {
            "ms": best["best_ms"],
            "gflops": best["best_gflops"],
            "share_of_best_tile_products": rate,
            "times_faster_than_torch_double_backward": speedup,
            "by_cpu_time": {
                "share_of_best_tile_products": by_cpu_time
                / max(each["best_gflops_by_cpu_time"] for each in measured["tile_products"]),
                "times_faster_than_torch_double_backward": torch_cpu_ms * by_cpu_time * 1e6 / best["flop"],
            },
        }
    summary["bars"] = {"share_of_best_tile_products": RATE_BAR, "times_faster_than_torch_double_backward": TORCH_BAR}
    summary["kept"] = kept
    print(json.dumps(summary, indent=1))
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"command": " ".join(["python3", *sys.argv]), "summary": summary, "measured": measured}
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if kept else 1


sys.exit(main())
