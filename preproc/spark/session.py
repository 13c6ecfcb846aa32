# SPDX-License-Identifier: Apache-2.0
"""Starts Spark, or uses the session that this process already has.

Only this module imports PySpark's session; it also looks for Java.
"""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from preproc.files.errors import PreprocError
from preproc.spark import cluster as spark_cluster
from preproc.spark.runner import InThread, SparkRunner
from preproc.spark.settings import SparkSettings
from recsys.installation import command_for

LEAST_JAVA = 17
_STOP_S, _TERMINATE_S = 4, 2
_REPOSITORY = Path(__file__).resolve().parents[2]
_LOGGING = Path(__file__).with_name("log4j2.properties").resolve()

_DEFAULTS = {
    "spark.app.name": "criteo",
    "spark.ui.showConsoleProgress": "false",  # the project's own reporter shows it
    "spark.locality.wait": "0s",  # shared storage: every executor is equally near
}


@contextlib.contextmanager
def connect(settings: SparkSettings) -> Iterator[SparkRunner]:
    """Connects to Spark; stops the session at the end if it was started here.

    Raises:
        PreprocError: Spark or Java is not installed, or the cluster does not answer in time.
    """
    pyspark = _import_pyspark()
    if pyspark.SparkContext._active_spark_context is not None:
        session = pyspark.sql.SparkSession.builder.getOrCreate()
        yield SparkRunner(session, settings.spark_start_timeout)
        return
    logging.getLogger().addFilter(_is_of_use)
    try:
        session = _start(pyspark, settings)
        try:
            yield SparkRunner(session, settings.spark_start_timeout)
        finally:
            stop = InThread(session.stop)
            stop.join(_STOP_S)
            if stop.is_alive():
                _kill_gateway(pyspark)
                stop.join(_TERMINATE_S)  # the call ends with Java, and is logged
    finally:
        logging.getLogger().removeFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    """Returns False for tracebacks that py4j logs if Ctrl-C or the end of Java interrupts a call.

    If a call of the job fails that way, its own error is reported.
    """
    error = None if record.exc_info is None else record.exc_info[1]
    cut = isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Py4JNetworkError"
    return not cut


def _import_pyspark() -> Any:
    try:
        import pyspark
        import pyspark.sql
    except ImportError as error:
        raise PreprocError(
            f"`engine` spark needs PySpark ({error}); {command_for('spark')} installs it",
            setting="engine",
        ) from error
    return pyspark


def _start(pyspark: Any, settings: SparkSettings) -> Any:
    """Starts a session within `spark_start_timeout`; Spark itself would wait forever."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # by spark-submit, which chose the master
    if submitted and settings.master is not None:
        raise PreprocError(
            "`master`: spark-submit has already chosen it; leave the flag out", setting="master"
        )
    _set_environment()
    if not submitted:
        find_java()

    def create() -> Any:
        builder = pyspark.sql.SparkSession.builder
        conf = configuration(pyspark, settings, submitted=submitted)
        master = pyspark.SparkConf().get("spark.master") if submitted else None
        spark_cluster.check_master(conf.get("spark.master", master) or "")
        for key, value in conf.items():
            builder = builder.config(key, value)
        return builder.getOrCreate()

    # Not in the main thread: there Spark would handle Ctrl-C, and its start could not be aborted.
    thread = InThread(create)
    try:
        _join(pyspark, thread, settings.spark_start_timeout)
    except BaseException:
        _kill_gateway(pyspark)
        raise
    master = settings.master or "the configured master"
    if thread.is_alive():
        _kill_gateway(pyspark)
        raise PreprocError(
            f"Spark at {master} did not answer within `spark_start_timeout` "
            f"{settings.spark_start_timeout:g} s; check the address, and whether the cluster has "
            "room for another application",
            setting="spark_start_timeout",
        )
    return thread.result(f"Spark at {master} did not start")


def _join(pyspark: Any, thread: threading.Thread, seconds: float) -> None:
    """Waits for the session's thread, at most `seconds` after Java's start."""
    deadline = None
    while thread.is_alive() and (deadline is None or time.monotonic() < deadline):
        thread.join(0.1)
        if deadline is None and pyspark.SparkContext._gateway is not None:
            deadline = time.monotonic() + seconds


def configuration(pyspark: Any, settings: SparkSettings, *, submitted: bool) -> dict[str, str]:
    """Returns Spark's configuration: defaults, overridden by spark-submit, then by flags."""
    defaults = dict(_DEFAULTS)
    defaults["spark.executorEnv.PYTHONPATH"] = str(_REPOSITORY)
    defaults["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{_LOGGING}"
    if settings.master is not None and settings.master.startswith("local["):
        defaults |= {
            "spark.ui.enabled": "false",
            "spark.driver.memory": "2g",
            "spark.driver.host": "localhost",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    if submitted:
        defaults["spark.log.level"] = "ERROR"  # Java already runs, with its own options
        pyspark.SparkContext._ensure_initialized()
        chosen = pyspark.SparkConf()
        defaults = {k: v for k, v in defaults.items() if not chosen.contains(k)}
    flags = {
        "spark.master": settings.master,
        "spark.executor.cores": settings.executor_cores,
        "spark.executor.memory": settings.executor_memory,
    }
    given = {key: str(value) for key, value in flags.items() if value is not None}
    return defaults | given | dict(settings.spark_conf)


def _set_environment() -> None:
    """Makes Spark's Python workers use this interpreter, unless another is named."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if str(_REPOSITORY) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(_REPOSITORY), *filter(None, paths)])


def find_java() -> None:
    """Checks that JAVA_HOME or PATH has a Java that is new enough.

    Raises:
        PreprocError: neither has one.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    version = java_version(java) if java else None
    if version is None or version < LEAST_JAVA:
        present = f"{java} is Java {version}" if version else "none works here"
        raise PreprocError(
            f"Spark needs Java {LEAST_JAVA} or later, but {present}; install one (Debian: "
            "openjdk-17-jre-headless) and set JAVA_HOME"
        )


def java_version(java: str) -> int | None:
    """Returns the major version of a Java; None if it fails to run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    match = re.search(r'version "(?:1\.)?([0-9]+)', done.stderr)
    return int(match[1]) if match else None


def _kill_gateway(pyspark: Any) -> None:
    """Ends the Java that this process started, and with it the executors."""
    process = getattr(pyspark.SparkContext._gateway, "proc", None)
    if process is None:  # spark-submit started Java
        return
    # The server of Spark's accumulators would print a traceback when Java disconnects.
    server = getattr(pyspark.SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None
    process.terminate()  # it removes its temporary folders
    try:
        process.wait(_TERMINATE_S)
    except subprocess.TimeoutExpired:
        process.kill()
