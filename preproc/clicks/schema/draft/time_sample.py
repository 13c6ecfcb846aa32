# SPDX-License-Identifier: Apache-2.0
"""Recognises timestamp columns by their texts."""

import re
from collections.abc import Collection

from preproc.clicks.schema.time_rule import TIME_FEATURES, TimeRule, read_zone

_NAME = re.compile(r"(?i)time|date|day|hour|stamp|(^|_)ts($|_)")
_DATES_OF_DIGITS = {
    8: ("%Y%m%d", "%y%m%d%H"),
    10: ("%Y%m%d%H",),
    12: ("%Y%m%d%H%M",),
    14: ("%Y%m%d%H%M%S",),
}
"""Date formats of numbers, by their number of digits."""
_UNITS = {9: "unix_s", 10: "unix_s", 12: "unix_ms", 13: "unix_ms", 15: "unix_us", 16: "unix_us"}
_UNITS |= {18: "unix_ns", 19: "unix_ns"}
"""Units of Unix times from 1973 on, by digits; seconds have ten digits from September 2001 on."""
_CLOCKS = (" %I:%M:%S %p", " %H:%M:%S", " %H:%M", "")
_DAYS = ("%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y-%m-%d", "%Y/%m/%d")
"""Formats of days; that of ISO 8601 is repeated to allow hours of one digit."""
_SPELLED = tuple(day + clock for day in _DAYS for clock in _CLOCKS)
_SURE = 10
"""Least distinct dates of digits that are not a coincidence, whatever the column's name."""
_OFFSET = re.compile(r"([+-]\d\d):?(\d\d)?")
_ZONE = re.compile(r"T?[\d:. ]+(Z|[+-]\d\d:?(?:\d\d)?)")


def time_rule(name: str, present: Collection[str]) -> TimeRule | None:
    """Returns the rule of a timestamp column, else None.

    Numbers are times if the column's name says so, or if there are many and all are dates.
    """
    if not present:
        return None
    rules = (TimeRule(each) for each in ("iso8601", *_SPELLED, *_of_digits(name, present)))
    return next((rule for rule in rules if reads_all(rule, present)), None)


def _of_digits(name: str, present: Collection[str]) -> list[str]:
    lengths = {len(cell.partition(".")[0]) for cell in present}
    has_name = _NAME.search(name) is not None
    formats = list[str]()
    if len(lengths) == 1 and (has_name or len(present) >= _SURE):
        dates = _DATES_OF_DIGITS.get(min(lengths), ())
        formats += dates if has_name else dates[:1]
    units = {_UNITS.get(length, "") for length in lengths}
    return [*formats, *units] if has_name and len(units) == 1 and all(units) else formats


def reads_all(rule: TimeRule, present: Collection[str]) -> bool:
    """Returns True if a rule reads all texts."""
    return all(rule.milliseconds(cell.encode()) is not None for cell in present)


def time_kind(name: str, present: Collection[str]) -> str:
    """Returns role, format and features of a timestamp column; empty for other columns."""
    rule = time_rule(name, present)
    if rule is None or len(present) == 1:
        return ""
    zone = _common_zone(present) if rule.format == "iso8601" else "UTC"
    rule = rule._replace(zone_minutes=read_zone(zone) or 0)
    times = [rule.milliseconds(cell.encode()) or 0 for cell in present]
    by_feature = ((f, rule._replace(features=(f,))) for f in TIME_FEATURES if f != "weekend")
    of_several = (f for f, own in by_feature if len({own.categories(time) for time in times}) > 1)
    features = ", ".join(of_several)
    zoned = f', time_zone: "{zone}"' if rule.zone_minutes and features else ""
    form = rule.format if rule.format.isidentifier() else f'"{rule.format}"'
    return f"timestamp, format: {form}, features: [{features}]{zoned}"


def zone_remark(kind: str, present: Collection[str]) -> str:
    """Returns a remark on the time zone of a timestamp column."""
    if "format: unix" in kind:
        return "hours are in UTC, unless time_zone says otherwise"
    zones = sorted(_zones(present)) if "iso8601" in kind else [""]
    if zones == [""]:
        return "no zone: taken to be UTC, unless time_zone says otherwise"
    said = f"zone{'s' if len(zones) > 1 else ''} {', '.join(zone or 'none' for zone in zones)}"
    hours = "its own" if "time_zone" in kind else "UTC, unless time_zone says otherwise"
    return f"{said}: hours are in {hours}"


def _common_zone(present: Collection[str]) -> str:
    """Returns the fixed offset that all texts end in, in schema form; else UTC."""
    match = [_OFFSET.fullmatch(zone) for zone in _zones(present)]
    if len(match) != 1 or match[0] is None:
        return "UTC"
    hours, minutes = match[0].groups()
    return f"{hours}:{minutes or '00'}"


def _zones(present: Collection[str]) -> set[str]:
    """Returns the zones that ISO 8601 texts end in; "" for a text without one."""
    matches = (_ZONE.search(cell, 10) for cell in present)
    return {match[1] if match else "" for match in matches}


def fits_days_first(kind: str, present: Collection[str]) -> bool:
    """Returns True if the texts also fit with day and month swapped."""
    form = re.findall(r'"(.*?)"', kind)[0].replace("%m/%d", "%d/%m")
    return reads_all(TimeRule(form), present)
