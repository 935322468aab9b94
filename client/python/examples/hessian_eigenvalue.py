"""The sharpness of a small transformer: its Hessian's largest eigenvalue, by power iteration on exact products.

Each product is a gradient of a gradient, so the server computes a double backward (BoB) for every attention layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from common import Attention, Transformer, attention_on_a_server, compare, plain_attention
from torch import Tensor, nn


def model_on(attention: Attention) -> nn.Module:
    """The same small transformer each time."""
    torch.manual_seed(0)
    return Transformer(8, 5, attention).double()


def hessian_vector_product(model: nn.Module, x: Tensor, y: Tensor, vector: Sequence[Tensor]) -> list[Tensor]:
    """Hessian of the loss times a vector, in the weights' shapes."""
    weights = list(model.parameters())
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    return list(torch.autograd.grad(gradients, weights, vector))


def main() -> None:
    """Prints the eigenvalue as it converges."""
    torch.manual_seed(1)
    x, y = torch.randn(4, 16, 8, dtype=torch.float64), torch.randint(5, (4, 16))
    with attention_on_a_server() as attention:
        model, plain = model_on(attention), model_on(plain_attention)
        vector = [torch.randn_like(w) for w in model.parameters()]
        product = hessian_vector_product(model, x, y, vector)
        compare("Hessian-vector product", product, hessian_vector_product(plain, x, y, vector))
        for step in range(15):
            norm = torch.stack([p.norm() for p in product]).norm()
            vector = [p / norm for p in product]
            product = hessian_vector_product(model, x, y, vector)
            eigenvalue = sum(float((v * p).sum()) for v, p in zip(vector, product, strict=True))
            residual = torch.stack([(p - eigenvalue * v).norm() for v, p in zip(vector, product, strict=True)]).norm()
            if step % 5 == 4:
                print(f"after {step + 1:2d} products: eigenvalue {eigenvalue:+.4f}, residual {float(residual):.1e}")


if __name__ == "__main__":
    main()
