# SPDX-License-Identifier: Apache-2.0
"""The flags of the Spark engine, for every command that has it."""

from collections.abc import Sequence

from absl import flags

from preproc.spark.settings import SPARK_MODES, SparkMode, SparkSettings, parse_spark_conf

_DEFAULTS = SparkSettings()
_ONLY_MODE: SparkMode = "dataframe"


def define_spark_flags(values: flags.FlagValues, modes: Sequence[str] = SPARK_MODES) -> None:
    """Adds the flags.

    Args:
        values: gets them.
        modes: those that the command has; no flag chooses where there is one alone.
    """
    flags.DEFINE_string(
        "master",
        None,
        "Where Spark runs: local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT; by "
        "default what spark-submit or Spark's configuration says, else all cores of this machine.",
        flag_values=values,
    )
    if len(modes) > 1:
        flags.DEFINE_string(
            "spark_mode",
            modes[0],
            f"{', '.join(modes)}: executors run the native kernel, or Spark SQL does everything.",
            flag_values=values,
        )
    flags.DEFINE_multi_string(
        "spark_conf",
        [],
        "Further configuration, spark.KEY=VALUE, several separated by commas; may be repeated.",
        flag_values=values,
    )
    flags.DEFINE_integer("executor_cores", None, "Cores of a Spark executor.", flag_values=values)
    flags.DEFINE_string(
        "executor_memory", None, "Memory of a Spark executor, such as 4g.", flag_values=values
    )
    flags.DEFINE_float(
        "spark_start_timeout",
        _DEFAULTS.spark_start_timeout,
        "Seconds until the first Spark executor must work.",
        flag_values=values,
    )


def spark_settings_from_flags(values: flags.FlagValues) -> SparkSettings:
    """Returns what the flags say.

    Raises:
        PreprocError: a flag has no meaning.
    """
    return SparkSettings(
        spark_mode=values.spark_mode if "spark_mode" in values else _ONLY_MODE,
        master=values.master,
        spark_conf=parse_spark_conf(values.spark_conf),
        executor_cores=values.executor_cores,
        executor_memory=values.executor_memory,
        spark_start_timeout=values.spark_start_timeout,
    )
