# SPDX-License-Identifier: Apache-2.0
"""Runs the CUDA kernels on the CPU, for tests on machines without a GPU."""
