# SPDX-License-Identifier: Apache-2.0
"""Fuzzing of the readers and request paths; `python -m tests.fuzz --help` says how to run it."""
