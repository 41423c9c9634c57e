"""The training step of a chain of convolutions in kernels of its own, for one network or many of a kind."""
