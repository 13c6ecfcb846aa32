# SPDX-License-Identifier: Apache-2.0
"""The model `logistic`, a logistic regression of clicks, and the runs of such models."""
