# SPDX-License-Identifier: Apache-2.0
"""What a dataset knows about the texts of its log."""

import math
from collections.abc import Sequence
from pathlib import Path

from preproc.clicks.applied import dictionaries_of_dataset, semantics_of_dataset
from preproc.clicks.schema.grammar import read_category, read_list
from preproc.clicks.schema.row_format import Column, ListRule, NumberRule

_HOURS = range(1_704_067_200_000, 1_704_672_000_000, 3_600_000)
"""The hours of a week, in milliseconds since 1970 UTC."""


class KnownTexts:
    """Reads and writes texts by the rules and dictionaries of a dataset.

    Attributes:
        label: name of the label column, and the texts of a click.

    Raises:
        PreprocError: preproc.clicks did not make the folder, or a dictionary is missing or damaged.
    """

    def __init__(self, dataset: Path) -> None:
        self._rules = semantics_of_dataset(dataset, {})
        self._keys = dictionaries_of_dataset(dataset).load()
        row, schema = self._rules.line_format, self._rules.schema
        self._columns = dict(
            zip(row.names, zip(row.columns, row.numbers, strict=True), strict=True)
        )
        self._singles = row.count("categorical")
        name = schema.named("label")[0].name if schema else "label"
        self.label = f"{name} = {' or '.join(schema.positive if schema else '1')}"

    def unknown(self, name: str, text: str) -> str:
        """Returns which part of a valid text the dictionaries lack; empty if nothing."""
        column, number = self._columns[name]
        if column.is_missing(field := text.encode()):
            return ""
        if column.list is not None:
            keys = self._keys[self._singles + number]
            elements = read_list(field, column.type, column.buckets, column.list)
            unknown = sum(element[0] not in keys for element in elements)
            return f"{unknown} of {len(elements)} unknown" if unknown else ""
        buckets = column.buckets or self._rules.category_modulus or 0
        is_known = (
            column.role != "categorical"
            or read_category(field, column.type, buckets) in self._keys[number]
        )
        return "" if is_known else "unknown"

    def of_row(
        self, numbers: Sequence[float], ids: Sequence[int], factors: Sequence[float]
    ) -> dict[str, str]:
        """Returns texts that have the features of a row, by column.

        Missing fields are empty, and so are unknown and hashed categories, whose texts are not
        kept.

        Args:
            numbers: [M].
            ids: [S], those of single features, then of lists, padded to the greatest length.
            factors: [S - F], factors of the ids of lists.
        """
        texts, at = {}, 0
        for name, (column, number) in self._columns.items():
            texts[name] = ""
            if column.role == "numerical":
                texts[name] = self._number(column, numbers[number])
            elif column.role == "categorical":
                texts[name] = self._category(column, number, ids[number])
            elif column.time is not None:
                of_time = range(number, number + len(column.derived))
                keys = {n - number: self._keys[n][ids[n] - 1] for n in of_time if ids[n]}
                for time in _HOURS if keys else ():
                    features = column.time.categories(time)
                    if all(features[n] == key for n, key in keys.items()):
                        texts[name] = column.time.text(time)
                        break
            elif (rule := column.list) is not None:
                places = range(at, at := at + rule.max_length)
                of_list = [(ids[self._singles + n], factors[n]) for n in places]
                texts[name] = self._list(column, rule, self._singles + number, of_list)
        return texts

    def _number(self, column: Column, feature: float) -> str:
        is_float, rule = column.type == "float", column.rule
        if not is_float:
            rule = NumberRule("log", offset=self._rules.numerical_offset)
        if rule.transform == "log":
            number = math.exp(feature) - rule.offset
        else:
            is_log = rule.transform == "signed_log"
            size = math.expm1(abs(feature)) if is_log else abs(feature)
            number = math.copysign(size, feature) * rule.deviation + rule.mean
        return f"{number:.5g}" if is_float else str(round(number))

    def _category(self, column: Column, number: int, category: int) -> str:
        if not category or (column.buckets and column.type != "hex"):
            return ""
        key = self._keys[number][category - 1]
        if isinstance(key, bytes):
            return key.decode()
        return f"{key:08x}" if column.type == "hex" else str(key)

    def _list(
        self, column: Column, rule: ListRule, number: int, elements: Sequence[tuple[int, float]]
    ) -> str:
        count = sum(factor != 0 for _, factor in elements) if rule.pooling == "mean" else 1
        texts = [
            (self._category(column, number, category), f"{factor * count:.5g}")
            for category, factor in elements
        ]
        weight = rule.weight_separator
        return rule.separator.join(f"{t}{weight}{w if weight else ''}" for t, w in texts if t)
