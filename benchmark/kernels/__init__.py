# SPDX-License-Identifier: Apache-2.0
"""Measurements of the compiled ops, on CPU and CUDA, beside their limits."""
