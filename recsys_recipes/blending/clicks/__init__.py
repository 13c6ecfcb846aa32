# SPDX-License-Identifier: Apache-2.0
"""The model `blend_clicks`: a DLRM and a logistic regression, added."""
