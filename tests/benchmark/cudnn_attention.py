"""Times PyTorch's cuDNN attention, forward and backward, by device events: the yardstick of performance.md.

    hopper_kernels time SHAPE... > bob.jsonl
    python3 cudnn_attention.py bob.jsonl > ratios.jsonl

Takes the shapes that hopper_kernels timed just before on the same GPU and gives BoB over cuDNN's backward; a shape that
cuDNN's attention does not take (a window) is left as it is, and so is fp16. bf16, fresh random normal inputs, warm,
median of at least 10.
"""

import argparse
import json
import statistics

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def median_ms(function, repeats):
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measure(shape):
    batch, heads, kv_heads, queries, keys, dim, left, right = (int(x) for x in shape.split(",")[:8])
    if left >= 0 or right > 0 or queries != keys or "bf16" not in shape:
        return {}
    causal = right == 0
    q, do = (torch.randn((batch, heads, queries, dim), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.randn((batch, kv_heads, keys, dim), device="cuda", dtype=torch.bfloat16) for _ in range(2))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    options = {"is_causal": causal, "enable_gqa": heads != kv_heads}
    repeats = 10 if queries > 100_000 else 20
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        with torch.no_grad():
            forward = median_ms(lambda: scaled_dot_product_attention(*inputs, **options), repeats)
        o = scaled_dot_product_attention(*inputs, **options)
        backward = median_ms(lambda: torch.autograd.grad(o, inputs, do, retain_graph=True), repeats)
    product = 2e-9 * batch * heads * dim * queries * keys / (2 if causal else 1)
    return {
        "cudnn_forward_ms": round(forward, 4),
        "cudnn_forward_tflops": round(2 * product / forward, 1),
        "cudnn_backward_ms": round(backward, 4),
        "cudnn_backward_tflops": round(5 * product / backward, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bob", help="what `hopper_kernels time` printed")
    with open(parser.parse_args().bob) as lines:
        rows = [json.loads(line) for line in lines if line.startswith("{")]
    for row in rows:
        try:
            row.update(measure(row["shape"]))
        except RuntimeError as error:
            row["cudnn_error"] = str(error).splitlines()[0]
        if "cudnn_backward_ms" in row:
            row["bob_over_cudnn_backward"] = round(row["bob_ms"] / row["cudnn_backward_ms"], 3)
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
