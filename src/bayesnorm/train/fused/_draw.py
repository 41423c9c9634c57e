"""Draws of the noise stream inside kernels: the integers of ``bayesnorm.noise``, and its normal numbers."""

# Triton reads annotations as its own types, so that there are none for mypy.
# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False

import triton
import triton.language as tl

from ...noise import _GOLDEN, _MIX1, _MIX2

GOLDEN = tl.constexpr(_GOLDEN % 2**64)
MIX1 = tl.constexpr(_MIX1 % 2**64)
MIX2 = tl.constexpr(_MIX2 % 2**64)


@triton.jit
def scramble(x):
    """All of ``mix`` between its addition and its last shift, of unsigned integers."""
    x = (x ^ (x >> 30)) * MIX1
    return (x ^ (x >> 27)) * MIX2


@triton.jit
def mix(x):
    """The output function of splitmix64."""
    x = scramble(x + GOLDEN)
    return x ^ (x >> 31)


@triton.jit
def row_hash(key, step, sample):
    """``noise.rows``."""
    seed = mix(mix(key.to(tl.uint64)) + step.to(tl.uint64) * GOLDEN)
    return mix(seed + sample.to(tl.uint64) * GOLDEN)


@triton.jit
def symmetric(row, column):
    """Odd multiples of 2^-23 in (-1, 1)."""
    hashed = scramble(row + column.to(tl.uint64) + GOLDEN)
    return ((hashed.to(tl.int64, bitcast=True) >> 40) | 1).to(tl.float32) * (2.0**-23)


@triton.jit
def uniform(row, column):
    """``noise.uniform``."""
    return symmetric(row, column) * 0.5 + 0.5


@triton.jit
def normal(row, column):
    """``noise.normal``, with its bound of 3: a rational start (Giles, 2010) and a step of Newton in float64."""
    v = symmetric(row, column)
    w = -tl.log((1.0 - v) * (1.0 + v))
    near = w - 2.5
    p = 2.81022636e-08
    p = p * near + 3.43273939e-07
    p = p * near - 3.5233877e-06
    p = p * near - 4.39150654e-06
    p = p * near + 0.00021858087
    p = p * near - 0.00125372503
    p = p * near - 0.00417768164
    p = p * near + 0.246640727
    p = p * near + 1.50140941
    far = tl.sqrt(tl.maximum(w, 5.0)) - 3.0
    q = -0.000200214257
    q = q * far + 0.000100950558
    q = q * far + 0.00134934322
    q = q * far - 0.00367342844
    q = q * far + 0.00573950773
    q = q * far - 0.0076224613
    q = q * far + 0.00943887047
    q = q * far + 1.00167406
    q = q * far + 2.83297682
    exact = v.to(tl.float64)
    z = (tl.where(w < 5.0, p, q) * v).to(tl.float64)
    z -= (tl.erf(z) - exact) * tl.exp(z * z) * 0.8862269254527580
    return tl.minimum(tl.maximum(z * 1.4142135623730951, -3.0), 3.0).to(tl.float32)
