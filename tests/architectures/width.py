"""Channel counts under a width multiplier."""


def scaled(channels: int, width: float, divisor: int = 8) -> int:
    """Nearest multiple of `divisor` to `channels * width`, half rounded up, and never below `divisor`."""
    return max(divisor, int(channels * width / divisor + 0.5) * divisor)
