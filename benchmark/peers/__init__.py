# SPDX-License-Identifier: Apache-2.0
"""Other software that benchmarks compare with, a module each."""
