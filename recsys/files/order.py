# SPDX-License-Identifier: Apache-2.0
"""The order of files that are sorted by name."""

import re


def by_number(name: str) -> tuple[list[int | str], str]:
    """Returns a sort key that puts hour_2 before hour_10: digits in names compare as numbers."""
    words = re.split("([0-9]+)", name)
    return [int(word) if i % 2 else word for i, word in enumerate(words)], name
