#!/usr/bin/env python3
"""Times the CUDA engine and PyTorch's cuDNN and flash attention on the same shapes in one run and prints the ratios.

    ratios.py path/to/cuda_attention_benchmark [-o out.json] [shape ...]     shapes: B,H[/kv],N,D[,c|,wL]

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


def time_torch(shape, kv_heads, causal, backend):
    """Milliseconds of (forward, backward), or an error's text."""
    import torch
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    try:
        with sdpa_kernel(backend):
            kv_shape = [shape[0], kv_heads, *shape[2:]]
            shapes = (shape, kv_shape, kv_shape)
            q, k, v = (torch.randn(x, device="cuda", dtype=torch.bfloat16, requires_grad=True) for x in shapes)
            dout = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
            options = {"is_causal": causal, "enable_gqa": kv_heads != shape[1]}
            with torch.no_grad():
                forward = time_ms(lambda: scaled_dot_product_attention(q, k, v, **options))
            out = scaled_dot_product_attention(q, k, v, **options)
            backward = time_ms(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))
            return forward, backward
    except RuntimeError as error:
        return str(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("shapes", nargs="*", default=SHAPES)
    parser.add_argument("-o", "--output")
    parser.add_argument("--ops", default="forward,backward,jvp,double_backward", help="of ours")
    parser.add_argument("--deterministic", action="store_true", help="ours once more, deterministic")
    parser.add_argument("--portable", action="store_true", help="ours without the kernels for Hopper")
    arguments = parser.parse_args()

    import torch
    from torch.nn.attention import SDPBackend

    rows = []
    for text in arguments.shapes:
        parts = text.split(",")
        heads = [int(x) for x in parts[1].split("/")]
        shape = [int(parts[0]), heads[0], int(parts[2]), int(parts[3])]
        causal = len(parts) == 5
        window = causal and parts[4] != "c"
        command = [arguments.benchmark, "--ops", arguments.ops]
        if arguments.portable:
            command.append("--portable")
        ours = json.loads(subprocess.run([*command, text], check=True, capture_output=True).stdout)
        row = {"shape": shape, "kv_heads": heads[-1], "mask": parts[4] if causal else "full"}
        row["flashbob"] = ours["results"]
        if arguments.deterministic:
            again = subprocess.run([*command, "--deterministic", text], check=True, capture_output=True).stdout
            row["deterministic"] = json.loads(again)["results"]
        for name, backend in (("cudnn", SDPBackend.CUDNN_ATTENTION), ("flash", SDPBackend.FLASH_ATTENTION)):
            # PyTorch's attention takes no window.
            timed = "no windows" if window else time_torch(shape, heads[-1], causal, backend)
            row[name] = timed if isinstance(timed, str) else {"forward_ms": timed[0], "backward_ms": timed[1]}
        rows.append(row)
        torch.cuda.empty_cache()

    for row in rows:
        name = "{},{}/{},{},{}".format(row["shape"][0], row["shape"][1], row["kv_heads"], *row["shape"][2:])
        print(f"{name} {row['mask']}", end="")
        ms = {result["operation"]: result["ms"] for result in row["flashbob"]}
        for result in row["flashbob"]:
            print(f" | {result['operation']} {result['ms']:.3f} ms {result['tflops']:.0f} TFLOP/s", end="")
        if "deterministic" in row:
            row["deterministic_over_free"] = {
                result["operation"]: result["ms"] / ms[result["operation"]] for result in row["deterministic"]
            }
            print(f" | deterministic over free {row['deterministic_over_free']}", end="")
        if isinstance(row["cudnn"], str):
            print(f" | cudnn: {row['cudnn'].splitlines()[0][:80]}")
            continue
        row["ratios"] = {}
        for operation, ours_ms in ms.items():
            against = "forward" if operation == "forward" else "backward"
            row["ratios"][f"{operation}_over_cudnn_{against}"] = ours_ms / row["cudnn"][f"{against}_ms"]
        print(f" | cudnn f {row['cudnn']['forward_ms']:.3f} b {row['cudnn']['backward_ms']:.3f}", end="")
        print("".join(f" | {key} {value:.2f}" for key, value in row["ratios"].items()))
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
