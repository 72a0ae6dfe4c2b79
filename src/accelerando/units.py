"""Numbers of bytes as people read them, in powers of 1024 and of 1000. Pure."""


def binary_size(count: float) -> str:
    """Memory, files and messages whose sizes are powers of two: ``32 KiB``, ``23.5 GiB``."""
    return _scaled(count, 1024, ("bytes", "KiB", "MiB", "GiB", "TiB"))


def decimal_size(count: float) -> str:
    """What a wire carries, whose speed is told in powers of ten: ``1.5 KB``, ``24 MB``."""
    return _scaled(count, 1000, ("bytes", "KB", "MB", "GB", "TB"))


def _scaled(count: float, base: int, units: tuple[str, ...]) -> str:
    place = 0
    while count >= base and place < len(units) - 1:
        count, place = count / base, place + 1
    digits = f"{count:.3g}" if place and count < 999.5 else f"{count:.0f}"
    return f"{digits} {units[place]}"
