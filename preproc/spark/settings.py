# SPDX-License-Identifier: Apache-2.0
"""What a run on Spark is asked to do, validated; knows no Spark."""

import dataclasses
import re
from typing import Literal, get_args

from preproc.files.errors import PreprocError

SparkMode = Literal["kernel", "dataframe"]
SPARK_MODES: tuple[SparkMode, ...] = get_args(SparkMode)

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+")
_NEXT_KEY = re.compile(r",(?=[A-Za-z][\w.-]*=)")
_MEMORY = re.compile(r"([0-9]+)([kmgt]?)b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SparkSettings:
    """How to reach Spark and what to ask of it; the fields are the flags of the same name.

    Attributes:
        spark_mode: `kernel`: executors run the native kernel on byte ranges, Spark schedules;
            `dataframe`: Spark SQL alone.
        master: where Spark runs; None: what spark-submit or the configuration says, else all
            cores of this machine.
        spark_conf: further configuration, key and value.
        executor_cores: cores of an executor; None leaves it to Spark.
        executor_memory: memory of an executor, such as `4g`; None leaves it to Spark.
        spark_start_timeout: seconds until the first executor must work.
    """

    spark_mode: SparkMode = "kernel"
    master: str | None = None
    spark_conf: tuple[tuple[str, str], ...] = ()
    executor_cores: int | None = None
    executor_memory: str | None = None
    spark_start_timeout: float = 300.0

    def __post_init__(self) -> None:
        """Refuses settings that cannot be carried out."""
        if self.spark_mode not in SPARK_MODES:
            raise PreprocError(
                f"--spark_mode must be one of {', '.join(SPARK_MODES)}; got {self.spark_mode!r}"
            )
        if self.master is not None and _MASTER.fullmatch(self.master) is None:
            raise PreprocError(
                "--master must be local[*], local[N], spark://HOST:PORT, yarn or "
                f"k8s://https://HOST:PORT; got {self.master!r}"
            )
        if self.executor_cores is not None and self.executor_cores < 1:
            raise PreprocError(f"--executor_cores must be at least 1, got {self.executor_cores}")
        if self.executor_memory is not None:
            parse_spark_size("--executor_memory", self.executor_memory)
        if not self.spark_start_timeout > 0:
            raise PreprocError(
                f"--spark_start_timeout must be above 0 seconds, got {self.spark_start_timeout}"
            )

    def unit_bytes(self) -> int | None:
        """Returns the text of one task, where the configuration says it."""
        text = dict(self.spark_conf).get("spark.sql.files.maxPartitionBytes")
        if text is None:
            return None
        size = parse_spark_size("--spark_conf spark.sql.files.maxPartitionBytes", text)
        return max(size, 1)


def parse_spark_conf(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """Returns keys and values of `k=v,k=v`; a comma within a value is one no key follows.

    Raises:
        PreprocError: something is not of the form key=value.
    """
    pairs = []
    for part in (p for text in texts for p in _NEXT_KEY.split(text) if p):
        key, equals, value = part.partition("=")
        if not equals or not key.startswith("spark."):
            raise PreprocError(
                f"--spark_conf must be spark.KEY=VALUE, several separated by commas; got {part!r}"
            )
        pairs.append((key.strip(), value.strip()))
    return tuple(pairs)


def parse_spark_size(name: str, text: str) -> int:
    """Returns the bytes of a size as Spark spells it: `512m`, `4g`, `67108864`.

    Raises:
        PreprocError: the spelling is none of these.
    """
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise PreprocError(f"{name} must be a size such as 512m or 4g; got {text!r}")
    return int(match[1]) << _POWERS[match[2].lower()]
