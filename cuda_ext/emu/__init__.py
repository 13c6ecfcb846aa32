# SPDX-License-Identifier: Apache-2.0
"""Emulates CUDA kernels on the CPU, for tests without a GPU."""
