# SPDX-License-Identifier: Apache-2.0
"""Measurements on a GPU, and the model of a step there."""
