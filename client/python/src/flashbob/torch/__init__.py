"""Attention for PyTorch, differentiable twice in either mode, computed by a FlashBoB server.

    from flashbob.torch import scaled_dot_product_attention

has torch's own signature and meaning. `packed_attention` is the same for sequences of different lengths put one after
the other; `patch` makes existing models use it.
"""

from flashbob.torch._attention import packed_attention, scaled_dot_product_attention
from flashbob.torch._patch import patch

__all__ = ["packed_attention", "patch", "scaled_dot_product_attention"]
