# SPDX-License-Identifier: Apache-2.0
"""The Spark engine for click logs, with the kernel or with dataframes."""
