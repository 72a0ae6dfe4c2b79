"""Numbers of bytes are told in the largest unit that leaves at least one, with three digits."""

import pytest

from accelerando import units


@pytest.mark.parametrize(
    ("count", "binary", "decimal"),
    [
        (0, "0 bytes", "0 bytes"),
        (999, "999 bytes", "999 bytes"),
        (1023, "1023 bytes", "1.02 KB"),
        (32768, "32 KiB", "32.8 KB"),
        (1023 * 1024, "1023 KiB", "1.05 MB"),
        (999_999, "977 KiB", "1000 KB"),
        (25276502016, "23.5 GiB", "25.3 GB"),
        (2**52, "4096 TiB", "4504 TB"),
    ],
)
def test_sizes_are_told_in_the_largest_fitting_unit(count: int, binary: str, decimal: str) -> None:
    assert units.binary_size(count) == binary
    assert units.decimal_size(count) == decimal
