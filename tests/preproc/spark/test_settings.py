# SPDX-License-Identifier: Apache-2.0
"""What can be known of the Spark engine without Spark: settings, places of rows, messages."""

import subprocess
import sys
import threading

import pytest

from preproc.clicks import __main__ as clicks
from preproc.spark.cluster import Worker, explain_workers
from preproc.spark.runner import cause, within
from preproc.spark.session import java_version
from preproc.spark.settings import SparkSettings, parse_spark_conf, parse_spark_size
from tests import harness

GIB = 2**30
SMALLER = {"`executor_cores`", "`executor_memory`"}


def test_flags_become_settings():
    values = clicks.define_flags()
    values(
        [
            "criteo", "--input=in", "--output=out", "--engine=spark",
            "--master=spark://host:7077", "--executor_cores=4", "--executor_memory=8g",
            "--spark_conf=spark.jars=a.jar,b.jar,spark.task.cpus=2", "--spark_conf=spark.x=1=2",
            "--spark_start_timeout=20",
        ]
    )  # fmt: skip
    assert clicks.job_from_flags(values).spark == SparkSettings(
        master="spark://host:7077",
        spark_conf=(("spark.jars", "a.jar,b.jar"), ("spark.task.cpus", "2"), ("spark.x", "1=2")),
        executor_cores=4,
        executor_memory="8g",
        spark_start_timeout=20.0,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("master", "host:7077"),
        ("executor_cores", 0),
        ("executor_memory", "lots"),
        ("spark_start_timeout", 0.0),
        ("spark_start_timeout", float("nan")),
    ],
)
def test_settings_without_a_meaning(name, value):
    with harness.refusal(value, settings=(name,)):
        SparkSettings(**{name: value})


def test_sizes_and_configuration():
    sizes = {"64": 64, "512m": 2**29, "4g": 4 * GIB, "2GB": 2 * GIB, "1k": 1024}
    assert {text: parse_spark_size("x", text) for text in sizes} == sizes
    for text in ("1.5g", "4 g", "g", "4x"):
        with harness.refusal("x", repr(text)):
            parse_spark_size("x", text)
    conf = (("spark.sql.files.maxPartitionBytes", "1m"),)
    assert SparkSettings(spark_conf=conf).unit_bytes() == 2**20
    assert SparkSettings().unit_bytes() is None
    for text in ("spark.x", "executor.memory=1g", "=1"):
        with harness.refusal(repr(text), settings=("spark_conf",)):
            parse_spark_conf([text])


SMALL = Worker(cores=4, memory=2 * GIB, free_cores=4, free_memory=2 * GIB)
BUSY = Worker(cores=8, memory=16 * GIB, free_cores=0, free_memory=GIB)
FREE = Worker(cores=8, memory=16 * GIB, free_cores=8, free_memory=16 * GIB)


@pytest.mark.parametrize(
    ("workers", "cores", "memory", "remedies", "facts"),
    [
        ([], 1, GIB, {"`master`"}, ["1 core", "1.0 GiB"]),
        ([SMALL], 1, 3 * GIB, SMALLER, ["1 core", "3.0 GiB", "4 core", "2.0 GiB"]),
        ([SMALL], 6, GIB, SMALLER, ["6 core", "1.0 GiB", "4 core", "2.0 GiB"]),
        ([BUSY, SMALL], 1, 3 * GIB, set(), ["1 core", "3.0 GiB"]),
        ([FREE], 1, 3 * GIB, {"spark.driver.host"}, ["1 core", "3.0 GiB"]),
    ],
)
def test_explanation_of_a_cluster(workers, cores, memory, remedies, facts):
    """A busy one alone has no remedy but to wait."""
    message = explain_workers(workers, cores, memory)
    harness.assert_tells(message, *facts)
    known = {"`master`", "spark.driver.host"} | SMALLER
    assert {remedy for remedy in known if remedy in message} == remedies


def test_cause_is_found_in_a_page_of_java():
    python = (
        "An error occurred while calling o1.collect.\n: org.apache.SparkException: Job aborted"
        "\nTraceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'p'\n"
        "\n\tat org.apache.spark.X\nCaused by: y\n"
    )
    assert cause(python) == "ModuleNotFoundError: No module named 'p'"
    java = (
        "An error\n: z.Exception: top\n\tat a.b\nCaused by: java.io.EOFException: cut off\n\tat c"
    )
    assert cause(java) == "Caused by: java.io.EOFException: cut off"
    assert cause("short") == "short"


def test_a_call_that_hangs_is_given_up():
    done = []
    assert within(lambda: done.append(1), 30)
    assert done == [1]
    assert within(lambda: int("no number"), 30)  # Java is gone: nothing is left to wait for
    release = threading.Event()
    assert not within(release.wait, 0.02)
    release.set()


def test_version_of_java(tmp_path):
    java = tmp_path / "java"
    for text, version in (('openjdk version "17.0.2" 2022', 17), ('java version "1.8.0_1"', 8)):
        java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
        java.chmod(0o755)
        assert java_version(str(java)) == version
    assert java_version(str(tmp_path / "none")) is None


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Calls run-spark.sh with a Python that says what it is given."""
    names = ("MASTER", "TOTAL_CORES", "TOTAL_MEMORY", "EXECUTOR_CORES", "OPTS", "INPUT_PATH")
    values = dict.fromkeys(names) | {"RECIPES_PYTHON": "/bin/echo"} | environment
    return harness.run(
        *(harness.REPOSITORY / "preproc" / "run-spark.sh", *arguments), status=None, **values
    )


def test_script_passes_the_environment_on():
    paths = {"INPUT_PATH": "/in", "OUTPUT_PATH": "/out"}
    done = shell("--progress=json", TOTAL_CORES="80", TOTAL_MEMORY="800", **paths)
    assert done.stdout.split() == [
        f"{harness.REPOSITORY}/preproc/spark_data_utils.py",
        "--input=/in", "--output=/out", "--master=local[80]",
        "--spark_conf=spark.driver.memory=800g", "--progress=json",
    ]  # fmt: skip
    cluster = {"MASTER": "spark://h:7077", "EXECUTOR_CORES": "08"} | paths
    options = {"OPTS": "--frequency_limit 8", "TOTAL_CORES": "080", "TOTAL_MEMORY": "800"}
    assert shell(**cluster, **options).stdout.split()[3:] == [
        "--master=spark://h:7077", "--executor_cores=8",
        "--spark_conf=spark.cores.max=80,spark.executor.instances=10", "--executor_memory=80g",
        "--frequency_limit", "8",
    ]  # fmt: skip
    assert "--frequency_limit=0" in shell(USE_FREQUENCY_LIMIT="0", **paths).stdout
    assert "--frequency_limit" not in shell(USE_FREQUENCY_LIMIT="1", **paths).stdout


@pytest.mark.parametrize(
    ("environment", "facts"),
    [
        ({"TOTAL_CORES": "many"}, ["TOTAL_CORES", "'many'"]),
        ({"TOTAL_CORES": "9" * 20}, ["TOTAL_CORES", "9" * 20]),
        ({"MASTER": "yarn", "TOTAL_MEMORY": "8"}, ["TOTAL_MEMORY", "TOTAL_CORES"]),
        ({"MASTER": "yarn", "TOTAL_CORES": "2"}, ["TOTAL_CORES 2", "EXECUTOR_CORES 4"]),
    ],
)
def test_script_says_what_is_wrong(environment, facts):
    done = shell(**environment)
    assert done.returncode == 2
    harness.assert_tells(done.stderr, *facts)


def test_submitted_script_names_a_python_without_the_requirements():
    script = harness.REPOSITORY / "preproc" / "spark_data_utils.py"
    done = harness.python("-S", script, "--input=in", "--output=out", PYTHONPATH=None, status=2)
    assert done.stderr.startswith(f"error: {sys.executable}: ")
    harness.assert_tells(done.stderr, "PYSPARK_PYTHON")
    assert len(done.stderr.splitlines()) == 1
