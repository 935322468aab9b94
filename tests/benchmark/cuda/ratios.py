#!/usr/bin/env python3
"""Times the CUDA engine and PyTorch's cuDNN and flash attention on the same shapes in one run and prints the ratios.

    ratios.py path/to/cuda_attention_benchmark [-o out.json] [shape ...]     shapes: B,H,N,D or B,H,N,D,c

Both sides: bf16, normal inputs, device events, medians of 10 after warm-up. A shape's two sides run one after the
other.
"""

import argparse
import json
import statistics
import subprocess
import sys

SHAPES = ["1,16,16384,64", "1,16,16384,64,c", "1,16,16384,128", "1,16,16384,128,c"]


def time_ms(run, reps=10, warm_up=3):
    import torch

    for _ in range(warm_up):
        run()
    times = []
    for _ in range(reps):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def time_torch(shape, causal, backend):
    """Milliseconds of (forward, backward), or an error's text."""
    import torch
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    try:
        with sdpa_kernel(backend):
            q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
            dout = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            with torch.no_grad():
                forward = time_ms(lambda: scaled_dot_product_attention(q, k, v, is_causal=causal))
            out = scaled_dot_product_attention(q, k, v, is_causal=causal)
            backward = time_ms(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
            return forward, backward
    except RuntimeError as error:
        return str(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("-o", "--output")
    arguments = parser.parse_args()

    import torch
    from torch.nn.attention import SDPBackend

    rows = []
    for text in arguments.shapes:
        parts = text.split(",")
        causal = len(parts) == 5
        shape = [int(x) for x in parts[:4]]
        ours = json.loads(subprocess.run([arguments.benchmark, text], check=True, capture_output=True).stdout)
        row = {"shape": shape, "causal": causal, "flashbob": ours["results"]}
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            timed = time_torch(shape, causal, backend)
            row[name] = timed if isinstance(timed, str) else {"forward_ms": timed[0], "backward_ms": timed[1]}
        rows.append(row)
        torch.cuda.empty_cache()

    print(
        f"{'shape':>18} {'fwd':>8} {'bwd':>8} {'jvp':>8} {'bob ms':>8} {'TF':>5} | {'cudnn f':>8} {'b':>8} | "
        f"{'fwd/cf':>6} {'bwd/cb':>6} {'bob/cb':>6} | {'fa f':>7} {'b':>7}"
    )
    for row in rows:
        ms = {result["operation"]: result["ms"] for result in row["flashbob"]}
        rate = {result["operation"]: result["tflops"] for result in row["flashbob"]}
        if isinstance(row["cudnn"], str):
            print(row["shape"], "cudnn:", row["cudnn"])
            continue
        cudnn = row["cudnn"]
        flash = row["flash"] if isinstance(row["flash"], dict) else {"forward_ms": 0, "backward_ms": 0}
        row["ratios"] = {
            "forward_over_cudnn_forward": ms["forward"] / cudnn["forward_ms"],
            "backward_over_cudnn_backward": ms["backward"] / cudnn["backward_ms"],
            "double_backward_over_cudnn_backward": ms["double_backward"] / cudnn["backward_ms"],
        }
        ratios = list(row["ratios"].values())
        name = ",".join(map(str, row["shape"])) + (" c" if row["causal"] else " n")
        print(
            f"{name:>18} {ms['forward']:8.3f} {ms['backward']:8.3f} {ms['jvp']:8.3f} {ms['double_backward']:8.3f} "
            f"{rate['double_backward']:5.0f} | {cudnn['forward_ms']:8.3f} {cudnn['backward_ms']:8.3f} | "
            f"{ratios[0]:6.2f} {ratios[1]:6.2f} {ratios[2]:6.2f} | {flash['forward_ms']:7.3f} "
            f"{flash['backward_ms']:7.3f}"
        )
    if arguments.output:
        with open(arguments.output, "w") as file:
            json.dump(
                {
                    "device": torch.cuda.get_device_name(),
                    "torch": torch.__version__,
                    "cudnn": torch.backends.cudnn.version(),
                    "command": " ".join(sys.argv),
                    "rows": rows,
                },
                file,
                indent=1,
            )


if __name__ == "__main__":
    main()
