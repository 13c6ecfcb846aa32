# SPDX-License-Identifier: Apache-2.0
"""Runs NVTabular in a process with its own environment."""
