# SPDX-License-Identifier: Apache-2.0
"""The order of files that are taken by name."""

import re


def by_number(name: str) -> tuple[list[int | str], str]:
    """Key that sorts hour_2 before hour_10: numbers within names count as numbers."""
    words = re.split("([0-9]+)", name)
    return [int(word) if i % 2 else word for i, word in enumerate(words)], name
