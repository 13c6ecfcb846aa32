# SPDX-License-Identifier: Apache-2.0
"""Training, evaluation and recommendation."""
