"""Tensor parallelism: groups of ranks, and how weights are divided among them."""
