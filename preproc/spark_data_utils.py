# SPDX-License-Identifier: Apache-2.0
"""The Spark engine for spark-submit; run-spark.sh usually starts it.

    spark-submit [--master ...] preproc/spark_data_utils.py --input DIR --output DIR [--flag ...]

The flags are those of `python -m preproc.clicks`, with --engine spark. One run generates the
dictionaries and transforms the train, validation and test splits. The same command continues an
interrupted run.
"""

import sys
from pathlib import Path

if not __package__:  # spark-submit puts the script's folder first, not the package's
    sys.path[0] = str(Path(__file__).resolve().parents[1])

try:
    from preproc.clicks.__main__ import main
except ModuleNotFoundError as error:
    sys.stderr.write(
        f"error: {sys.executable}: {error}; put the folder of a Python that has this project's "
        "requirements first on PATH, or name that Python in PYSPARK_PYTHON\n"
    )
    sys.exit(2)

if __name__ == "__main__":
    sys.exit(main([sys.argv[0], "--engine=spark", *sys.argv[1:]]))
