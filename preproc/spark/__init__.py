# SPDX-License-Identifier: Apache-2.0
"""Spark sessions, clusters and settings of every command."""
