# SPDX-License-Identifier: Apache-2.0
"""Measurements of a Triton server."""
