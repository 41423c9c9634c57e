r"""Counter-based noise: the stream from which every random scale of the library draws.

A draw is a pure function of five integers: key, step (or Monte Carlo index), sample, layer and channel:

.. math::
    r_n &= m(m(m(\text{key}) + G \cdot \text{step}_n) + G \cdot \text{sample}_n) \\
    c_j &= m(m(\text{layer} \oplus T_c) + G \cdot \text{channel}_j) \\
    e_{nj} &= m(r_n + c_j), \qquad v_{nj} = 2^{-23} (\lfloor 2^{-40} e_{nj} \rfloor \mathbin{|} 1) \in (-1, 1) \\
    u_{nj} &= (1 + v_{nj}) / 2, \qquad z_{nj} = \sqrt 2 \, \operatorname{erfinv}(v_{nj})

in two's complement 64-bit arithmetic, with :math:`m` the output function of splitmix64 (Steele, Lea and Flood, 2014)
and :math:`G` its increment. A mixed state precedes every counter, so that each level is a splitmix64 stream of its own
seed. Nothing here holds state, reads a value on the host or branches on one. The integers and ``uniform`` are the same
on CPU and CUDA, eager, compiled and replayed in a CUDA graph; so is ``normal``, computed in float64 and rounded to
float32, but for near-ties of that rounding. The inputs are integers, so autograd records nothing.

The row hashes depend on the batch and the column hashes on the network: the columns of all layers, concatenated once,
are drawn in one call.
"""

import math

import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the bits of the unsigned ``value``: torch's uint64 lacks the shifts and products needed here."""
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)  # odd, 2**64 / golden ratio: the increment of splitmix64
_MIX1 = _signed(0xBF58476D1CE4E5B9)
_MIX2 = _signed(0x94D049BB133111EB)
# Digits of pi: they keep the hashes of columns and derived keys apart from the chain of rows, which has the same form.
_COLUMN_TAG = 0x243F6A8885A308D3
_DERIVE_TAG = 0x13198A2E03707344


def _xorshift_(x: Tensor, bits: int) -> Tensor:
    # The mask makes the shift of a signed integer logical: without it x and ~x would collide.
    return x.bitwise_xor_((x >> bits).bitwise_and_((1 << (64 - bits)) - 1))


def _scramble_(x: Tensor) -> Tensor:
    """All of ``mix`` after its addition except the last xorshift, in place."""
    return _xorshift_(_xorshift_(x, 30).mul_(_MIX1), 27).mul_(_MIX2)


def mix(x: Tensor) -> Tensor:
    r"""Output function of splitmix64: a bijection of the 64-bit integers, every output bit hangs on every input bit.

    .. math::
        x \leftarrow x + G, \quad x \leftarrow (x \oplus (x \gg 30)) M_1, \quad
        x \leftarrow (x \oplus (x \gg 27)) M_2, \quad m(x) = x \oplus (x \gg 31)

    Arguments:
        x: int64, any shape. It is not modified.

    Returns:
        int64 of the same shape.

    The first output of splitmix64 from seed 0, as published:

    >>> hex(mix(torch.tensor(0)).item() % 2**64)
    '0xe220a8397b1dcdaf'
    """
    return _xorshift_(_scramble_(x + _GOLDEN), 31)


def columns(layer: int, channels: int, device: torch.device | str | None = None) -> Tensor:
    r"""Hashed ids :math:`c_j` of the channels ``0 .. channels - 1`` of a layer: a constant of the network.

    Arguments:
        layer: number of the noise source; a layer with two noises uses two numbers.
        channels: number of channels.
        device: where the ids live; torch's default device when None.

    Returns:
        int64 (channels,). Concatenate those of all layers to draw them together.

    >>> both = torch.cat([columns(0, 2), columns(1, 3)])
    >>> both.shape, torch.equal(both[2:4], columns(1, 2))
    (torch.Size([5]), True)
    """
    if layer < 0 or channels < 0:
        raise ValueError(f"layer and channels count from 0, got layer={layer}, channels={channels}")
    seed = torch.full((), layer, dtype=torch.int64, device=device).bitwise_xor_(_COLUMN_TAG)
    channel = torch.arange(channels, dtype=torch.int64, device=device)
    return mix(mix(seed) + (channel ^ 0) * _GOLDEN)  # the xor is for inductor, see rows


def rows(key: Tensor, step: Tensor, sample: Tensor) -> Tensor:
    r"""Row hashes :math:`r_n` of the samples of one batch.

    Arguments:
        key: int64, 0-dim, of the run (``draw_key``) or of one purpose in it (``derive``).
        step: int64, 0-dim or (N,): training step or Monte Carlo index.
        sample: int64 (N,): index of the sample. Rows with equal counters share their noise.

    Returns:
        int64 (N,).

    All three live on one device: torch would take a 0-dim CPU ``step`` along with CUDA samples, but a CUDA graph would
    then replay the step at which it was captured.

    >>> key, sample = torch.tensor(7), torch.arange(4)
    >>> first, second = rows(key, torch.tensor(0), sample), rows(key, torch.tensor(1), sample)
    >>> bool((first == second).any())
    False
    """
    for name, value in (("key", key), ("step", step), ("sample", sample)):
        if value.dtype != torch.int64 or value.device != sample.device:
            raise ValueError(f"{name} must be int64 on {sample.device}, got {value.dtype} on {value.device}")
    # Inductor folds the product of an arange into an int32 index, which cannot hold the constant; not so a xor.
    return mix(mix(mix(key) + step * _GOLDEN) + (sample ^ 0) * _GOLDEN)


def _symmetric(rows: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    """Uniform on the 2**23 odd multiples of 2**-23 in (-1, 1): symmetric and, like (1 + v) / 2, exact in float32."""
    # mix's addition is made on the rows, and its last xorshift, which leaves the top 31 bits alone, is left out.
    hashed = _scramble_((rows + _GOLDEN).unsqueeze(-1) + columns)
    return (hashed >> 40).bitwise_or_(1).to(dtype).mul_(2.0**-23)


def uniform(rows: Tensor, columns: Tensor) -> Tensor:
    r"""Uniform draws :math:`u_{nj}`, strictly inside (0, 1).

    Arguments:
        rows: int64 (N,) from ``rows``.
        columns: int64 (C,) from ``columns``.

    Returns:
        float32 (N, C): odd multiples of :math:`2^{-24}`. The same bits on every device.

    >>> r = rows(torch.tensor(7), torch.tensor(0), torch.arange(2))
    >>> uniform(r, columns(0, 3))
    tensor([[0.2419, 0.2021, 0.2379],
            [0.0073, 0.7005, 0.0355]])
    """
    return _symmetric(rows, columns, torch.float32).mul_(0.5).add_(0.5)


def normal(rows: Tensor, columns: Tensor, bound: float | None = 3.0) -> Tensor:
    r"""Standard normal draws :math:`z_{nj} = \sqrt 2 \operatorname{erfinv}(2 u_{nj} - 1)`, clamped to ``bound``.

    With :math:`b` the bound, the clamped draws have mean 0 and variance
    :math:`1 - 2 b \varphi(b) + 2 (b^2 - 1) (1 - \Phi(b))`, 0.9950 at 3. Unclamped draws stay within 5.3.

    Arguments:
        rows: int64 (N,) from ``rows``.
        columns: int64 (C,) from ``columns``.
        bound: largest absolute value; None for no clamp.

    Returns:
        float32 (N, C), whatever the default dtype or autocast.

    >>> r = rows(torch.tensor(7), torch.tensor(0), torch.arange(2))
    >>> normal(r, columns(0, 3))
    tensor([[-0.7002, -0.8342, -0.7129],
            [-2.4422,  0.5259, -1.8049]])
    """
    if bound is not None and not bound > 0:
        raise ValueError(f"bound must be positive, or None for no clamp, got {bound}")
    # In float32, the erfinv of inductor is off by 1e-6 inside the bound and 4e-5 outside (a Newton step on erf near 1).
    # Rounded from float64 all agree: the errors, the same step included, are far below a float32 spacing.
    z = _symmetric(rows, columns, torch.float64).erfinv_().mul_(math.sqrt(2.0))
    return (z if bound is None else z.clamp(-bound, bound)).to(torch.float32)


def derive(key: Tensor, domain: int) -> Tensor:
    r"""Independent key for another purpose: :math:`m(m(\text{key} \oplus T_d) + G \cdot \text{domain})`.

    Arguments:
        key: int64, 0-dim.
        domain: number of the purpose, such as 1 for training steps, 2 for Monte Carlo prediction.

    Returns:
        int64, 0-dim, on the device of ``key``.

    >>> key = torch.tensor(7)
    >>> bool(derive(key, 0) == derive(key, 1))
    False
    """
    # A tensor rather than a Python product: the latter exceeds 64 bits, and torch.compile may trace domain as symbolic.
    counter = torch.full_like(key, domain).mul_(_GOLDEN)
    return mix(mix(key ^ _DERIVE_TAG) + counter)


def draw_key(generator: torch.Generator | None) -> int:
    """Random key in [0, 2**63 - 1) from ``generator``, or from torch's global CPU generator when None.

    The only place where the library's noise uses a generator, so that ``torch.manual_seed`` sets it.

    >>> draw_key(torch.Generator().manual_seed(0)) == draw_key(torch.Generator().manual_seed(0))
    True
    """
    device = torch.device("cpu") if generator is None else generator.device
    return int(torch.randint(2**63 - 1, (), generator=generator, device=device, dtype=torch.int64).item())
