# SPDX-License-Identifier: Apache-2.0
"""Parts that the model is composed of."""
