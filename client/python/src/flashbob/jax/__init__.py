"""Attention for JAX, differentiable twice in either mode, computed by a FlashBoB server.

    from flashbob.jax import attention

works under jax.grad (twice), jax.jvp, jax.hessian, jax.jit and jax.vmap.
"""

from flashbob.jax._attention import attention

__all__ = ["attention"]
