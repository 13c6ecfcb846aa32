# SPDX-License-Identifier: Apache-2.0
"""Times of a log, and their features.

A time is a number of milliseconds since 1970 UTC. Zones are UTC or a fixed offset, because the
rules of other zones differ between libraries and hosts.
"""

import datetime
import re
from typing import Literal, NamedTuple, get_args

TimeFeature = Literal["hour", "weekday", "weekend"]
TIME_FEATURES: tuple[TimeFeature, ...] = get_args(TimeFeature)
"""In the order of the kernel's bits."""

_UNITS = {"unix_s": 1, "unix_ms": 10**3, "unix_us": 10**6, "unix_ns": 10**9}
NAMED_FORMATS = (*_UNITS, "iso8601")
MAX_FORMAT_BYTES = 31
END_OF_TIMES = 7_258_118_400_000
"""2200-01-01."""

_UNIX = re.compile(rb"([0-9]{1,19})(?:\.([0-9]*))?")
_ISO = re.compile(
    rb"(?P<Y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)(?:[T ](?P<H>\d\d):(?P<M>\d\d)"
    rb"(?::(?P<S>\d\d)(?:\.(?P<fraction>\d+))?)?"
    rb"(?P<zone>Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?"
)
_DIRECTIVES = {"Y": rb"(?P<Y>\d{4})", "p": rb"(?P<p>[aApP][mM])"} | {
    name: rb"(?P<%b>\d{1,2}+)" % name.encode() for name in "ymdHIMS"
}
"""The first of two digits may be missing, as in strptime; if there are two, both are read."""


class TimeRule(NamedTuple):
    """How the times of a column are read.

    Attributes:
        format: a name of `NAMED_FORMATS`, or text with %Y, %y, %m, %d, %H, %I, %p, %M, %S.
        zone_minutes: minutes east of UTC, for times without a zone and for the features.
        features: features to derive from a time.
    """

    format: str
    zone_minutes: int = 0
    features: tuple[TimeFeature, ...] = ()

    def problem(self) -> str:
        """Returns what is wrong with the format; empty if it is valid."""
        if self.format in NAMED_FORMATS:
            return ""
        directives = re.findall("%(.?)", self.format, re.DOTALL)
        unknown = [name for name in directives if name not in _DIRECTIVES]
        if unknown or not directives:
            allowed = ", ".join(f"%{name}" for name in _DIRECTIVES)
            return f"expected {', '.join(NAMED_FORMATS)} or text with {allowed}"
        if len(set(directives)) < len(directives) or {"Y", "y"} <= set(directives):
            return "has a directive twice"
        if ("I" in directives) != ("p" in directives) or {"H", "I"} <= set(directives):
            return "must have %I and %p together, instead of %H"
        if not {"m", "d"} <= set(directives) or not {"Y", "y"} & set(directives):
            return "needs year, month and day"
        if not self.format.isascii() or not self.format.isprintable():
            return "may have only printable ASCII"
        if len(self.format) > MAX_FORMAT_BYTES:
            return f"may have at most {MAX_FORMAT_BYTES} characters"
        return ""

    def milliseconds(self, field: bytes) -> int | None:
        """Returns the time of a field; None unless it is a time from 1970 to 2199."""
        if self.format in _UNITS:
            time = _read_unix(field, _UNITS[self.format])
        else:
            time = self._read_civil(field)
        return time if time is not None and 0 <= time < END_OF_TIMES else None

    def text(self, milliseconds: int) -> str:
        """Returns the text of a whole second in the column's format."""
        if self.format in _UNITS:
            return str(milliseconds // 1000 * _UNITS[self.format])
        form = "%Y-%m-%dT%H:%M:%S" if self.format == "iso8601" else self.format
        local = datetime.timedelta(milliseconds=milliseconds, minutes=self.zone_minutes)
        return (datetime.datetime(1970, 1, 1) + local).strftime(form)

    def _read_civil(self, field: bytes) -> int | None:
        match = (_ISO if self.format == "iso8601" else _pattern(self.format)).fullmatch(field)
        if match is None:
            return None
        texts = {name: text for name, text in match.groupdict().items() if text is not None}
        year = int(texts.get("Y", b"0"))
        if "y" in texts:  # the century that POSIX defines
            year = int(texts["y"]) + (2000 if int(texts["y"]) < 69 else 1900)
        if "p" in texts:
            if not 1 <= int(texts["I"]) <= 12:
                return None
            afternoon = 12 * (texts["p"].lower() == b"pm")
            texts["H"] = b"%d" % (int(texts["I"]) % 12 + afternoon)
        rest = (int(texts.get(name, b"0")) for name in "mdHMS")
        try:
            civil = datetime.datetime(year, *rest)  # type: ignore[arg-type]
        except ValueError:
            return None
        days = civil.toordinal() - datetime.date(1970, 1, 1).toordinal()
        seconds = 86400 * days + 3600 * civil.hour + 60 * civil.minute + civil.second
        fraction = int(texts.get("fraction", b"")[:3].ljust(3, b"0"))
        return 1000 * seconds + fraction - 60_000 * self._zone(texts.get("zone"))

    def _zone(self, zone: bytes | None) -> int:
        if zone is None:
            return self.zone_minutes
        if zone == b"Z":
            return 0
        digits = zone[1:].replace(b":", b"")
        minutes = 60 * int(digits[:2]) + int(digits[2:] or b"0")
        return -minutes if zone.startswith(b"-") else minutes

    def categories(self, time: int) -> tuple[int, ...]:
        """Returns the features of a time.

        They are the hour, the weekday (0 is Monday), and 1 on Saturday and Sunday.
        """
        local = time + 60_000 * self.zone_minutes
        weekday = (local // 86_400_000 + 3) % 7
        values = {"hour": local // 3_600_000 % 24, "weekday": weekday, "weekend": weekday >= 5}
        return tuple(int(values[feature]) for feature in TIME_FEATURES if feature in self.features)


def _read_unix(field: bytes, per_second: int) -> int | None:
    match = _UNIX.fullmatch(field)
    if match is None:
        return None
    number = int(match[1])
    if per_second > 1:
        return number * 1000 // per_second
    return number * 1000 + int((match[2] or b"")[:3].ljust(3, b"0"))


def _pattern(text: str) -> re.Pattern[bytes]:
    """Returns the pattern of a format with directives."""
    before, *others = text.split("%")
    pattern = re.escape(before.encode())
    for other in others:
        pattern += _DIRECTIVES[other[0]] + re.escape(other[1:].encode())
    return re.compile(pattern)


def read_iso_time(text: bytes) -> int | None:
    """Returns the milliseconds since 1970 UTC of an ISO 8601 time of any year, else None."""
    return TimeRule("iso8601")._read_civil(text)


def read_zone(text: str) -> int | None:
    """Returns minutes east of UTC from `UTC` or `+01:00`, else None."""
    match = re.fullmatch(r"([+-])([01]\d|2[0-3]):([0-5]\d)", text)
    if match is None:
        return 0 if text == "UTC" else None
    minutes = 60 * int(match[2]) + int(match[3])
    return -minutes if match[1] == "-" else minutes


def show_time(milliseconds: int) -> str:
    """Returns a time as ISO 8601 in UTC."""
    epoch = datetime.datetime(1970, 1, 1)
    return (epoch + datetime.timedelta(milliseconds=milliseconds)).isoformat(timespec="seconds")
