# SPDX-License-Identifier: Apache-2.0
"""Settings of a run on Spark; works without PySpark."""

import dataclasses
import re

from preproc.files.errors import PreprocError
from recsys.settings import setting
from recsys.sizes import JVM_UNITS, parse_size

_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[.+\]|spark://.+|yarn|k8s://.+")
_NEXT_KEY = re.compile(r",(?=[A-Za-z][\w.-]*=)")


def parse_spark_conf(texts: list[str]) -> tuple[tuple[str, str], ...]:
    """Returns the keys and values of texts such as `k=v,k=v`.

    A comma separates pairs only if a key follows it; others belong to the value.

    Raises:
        PreprocError: a text is not of the form key=value.
    """
    pairs = []
    for pair in (p for text in texts for p in _NEXT_KEY.split(text) if p):
        key, equals, value = pair.partition("=")
        if not equals or not key.startswith("spark."):
            raise PreprocError(
                f"`spark_conf` must be spark.KEY=VALUE, several separated by commas; got {pair!r}",
                setting="spark_conf",
            )
        pairs.append((key.strip(), value.strip()))
    return tuple(pairs)


def parse_spark_size(name: str, text: str, setting: str | None = None) -> int:
    """Parses a size in bytes as Spark does: `512m`, `4g`, `67108864`.

    Raises:
        PreprocError: the text is not such a size; the message calls it `name`, and is about
            `setting` if given.
    """
    size = parse_size(text, JVM_UNITS, fractions=False)
    if size is None:
        message = f"{name} must be a size such as 512m or 4g; got {text!r}"
        raise PreprocError(message, setting=setting)
    return size


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SparkSettings:
    """Settings of the connection to Spark and of its executors."""

    master: str | None = setting(
        None,
        "Where Spark runs: local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT; default: "
        "the master of spark-submit or Spark's configuration, else all cores of this machine.",
        used_with={"engine": ("spark",)},
    )
    spark_conf: tuple[tuple[str, str], ...] = setting(
        (),
        "More configuration, spark.KEY=VALUE, several separated by commas; may be repeated.",
        parse=parse_spark_conf,
        used_with={"engine": ("spark",)},
    )
    executor_cores: int | None = setting(
        None, "Cores of a Spark executor.", used_with={"engine": ("spark",)}
    )
    executor_memory: str | None = setting(
        None, "Memory of a Spark executor, such as 4g.", used_with={"engine": ("spark",)}
    )
    spark_start_timeout: float = setting(
        300.0, "Seconds to wait for the first Spark executor.", used_with={"engine": ("spark",)}
    )

    def __post_init__(self) -> None:
        """Refuses settings that are not valid."""
        if self.master is not None and _MASTER.fullmatch(self.master) is None:
            raise PreprocError(
                "`master` must be local[*], local[N], spark://HOST:PORT, yarn or "
                f"k8s://https://HOST:PORT; got {self.master!r}",
                setting="master",
            )
        if self.executor_cores is not None and self.executor_cores < 1:
            raise PreprocError(
                f"`executor_cores` must be at least 1, got {self.executor_cores}",
                setting="executor_cores",
            )
        if self.executor_memory is not None:
            parse_spark_size("`executor_memory`", self.executor_memory, "executor_memory")
        if not self.spark_start_timeout > 0:
            raise PreprocError(
                f"`spark_start_timeout` must be above 0 seconds, got {self.spark_start_timeout}",
                setting="spark_start_timeout",
            )

    def unit_bytes(self) -> int | None:
        """Returns the bytes of text per task; None if not configured."""
        text = dict(self.spark_conf).get("spark.sql.files.maxPartitionBytes")
        if text is None:
            return None
        name = "`spark_conf` spark.sql.files.maxPartitionBytes"
        size = parse_spark_size(name, text, "spark_conf")
        return max(size, 1)
