# SPDX-License-Identifier: Apache-2.0
"""The Spark engine for Criteo logs, in kernel or dataframe mode."""
