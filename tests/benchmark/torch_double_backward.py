"""Time PyTorch's double backward of materialised attention on the CPU; print one JSON object.

Debian's python3-torch will do: /usr/bin/python3 torch_double_backward.py --shape 1,4,2048,64
Set OPENBLAS_CORETYPE where OpenBLAS mistakes the chip (compare_cpu.py does).
"""

import argparse
import json
import math
import os
import time

import torch


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1,4,2048,64", help="B,H,N,D")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    shape = [int(extent) for extent in options.shape.split(",")]
    q, k, v, do = (torch.randn(shape, requires_grad=True) for _ in range(4))
    cotangents = [torch.randn(shape) for _ in range(3)]

    first_order = []
    double_backward = []
    double_backward_cpu = []
    for run in range(options.runs + 1):
        start = time.perf_counter()
        scores = q @ k.transpose(-1, -2) / math.sqrt(shape[-1])
        o = torch.softmax(scores, -1) @ v
        gradients = torch.autograd.grad(o, (q, k, v), do, create_graph=True)
        middle = time.perf_counter()
        cpu = time.process_time()
        torch.autograd.grad(gradients, (q, k, v, do), cotangents)
        end = time.perf_counter()
        if run > 0:  # the first one warms up
            first_order.append(middle - start)
            double_backward.append(end - middle)
            double_backward_cpu.append(time.process_time() - cpu)
    print(
        json.dumps(
            {
                "torch": torch.__version__,
                "shape": shape,
                "threads": options.threads,
                "runs": options.runs,
                "forward_and_backward_best_ms": 1e3 * min(first_order),
                "double_backward_best_ms": 1e3 * min(double_backward),
                "double_backward_best_ms_by_cpu_time": 1e3 * min(double_backward_cpu) / options.threads,
                "double_backward_median_ms": 1e3 * sorted(double_backward)[options.runs // 2],
            }
        )
    )


main()
