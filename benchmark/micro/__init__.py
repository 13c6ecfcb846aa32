# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of single components: kernels, loader, training step."""
