# SPDX-License-Identifier: Apache-2.0
"""The model `logistic`: a logistic regression of clicks, and the run of such models."""
