"""Writes golden_*.safetensors: PyTorch's derivatives of materialised attention on real_input.safetensors, in fp64.

Every derivative is autograd's, of nothing but the forward formula: dq, dk and dv its gradients, gq, gk, gv and gdo the
gradients of <uq, dq> + <uk, dk> + <uv, dv>. golden_CASE holds the double backward of all heads, rounded to fp32;
golden_CASE_fp64 all outputs of the first kv head and its query heads, not rounded. The masks and which heads of the
input are the kv heads stand in the files' metadata. README.md has the commands.
"""

import argparse
import dataclasses
import pathlib

import torch
from safetensors.torch import load_file, save_file


@dataclasses.dataclass(frozen=True)
class Case:
    """A mask, and the step from one kv head to the next within the heads of the input."""

    window_left: int = -1
    window_right: int = -1
    kv_head_step: int = 1


CASES = {
    "full": Case(),
    "causal": Case(window_right=0),
    "gqa": Case(kv_head_step=3),
    "window": Case(window_left=15, window_right=4),
}


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns o and lse of softmax attention; query head h uses kv head h / (heads / kv heads)."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, dim=-1) @ v, torch.logsumexp(scores, dim=-1)


def visible_pairs(case: Case, queries: int, keys: int) -> torch.Tensor:
    """Returns which keys a query sees."""
    offset = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if case.window_left >= 0:
        visible &= offset >= -case.window_left
    if case.window_right >= 0:
        visible &= offset <= case.window_right
    return visible


def derivatives(tensors: dict[str, torch.Tensor], case: Case) -> dict[str, torch.Tensor]:
    """Returns o, lse, the gradients and the gradients of the gradients."""
    leaves = {}
    for name, tensor in tensors.items():
        of_kv_heads = name in ("k", "v", "uk", "uv")
        leaves[name] = tensor[:, :: case.kv_head_step if of_kv_heads else 1].double()
    q, k, v, do = (leaves[name].requires_grad_() for name in ("q", "k", "v", "do"))
    o, lse = attention(q, k, v, visible_pairs(case, q.shape[2], k.shape[2]))
    first = torch.autograd.grad((o * do).sum(), (q, k, v), create_graph=True)
    objective = sum((leaves[name] * gradient).sum() for name, gradient in zip(("uq", "uk", "uv"), first, strict=True))
    second = torch.autograd.grad(objective, (q, k, v, do))
    names = ("o", "lse", "dq", "dk", "dv", "gq", "gk", "gv", "gdo")
    return {name: x.detach() for name, x in zip(names, (o, lse, *first, *second), strict=True)}


def main() -> None:
    """Reads the input, writes two files for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("input", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    arguments = parser.parse_args()

    tensors = load_file(arguments.input)
    for name, case in CASES.items():
        results = derivatives(tensors, case)
        metadata = {key: str(value) for key, value in dataclasses.asdict(case).items()}
        bob = {key: results[key].float().contiguous() for key in ("gq", "gk", "gv", "gdo")}
        save_file(bob, arguments.folder / f"golden_{name}.safetensors", metadata)
        group = results["gq"].shape[1] // results["gk"].shape[1]
        first = {
            key: x[:, : 1 if key in ("dk", "dv", "gk", "gv") else group].contiguous() for key, x in results.items()
        }
        save_file(first, arguments.folder / f"golden_{name}_fp64.safetensors", metadata)


if __name__ == "__main__":
    main()
