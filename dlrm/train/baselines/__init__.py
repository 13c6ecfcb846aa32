# SPDX-License-Identifier: Apache-2.0
"""Other click models, fitted to the training rows for comparison with a tested DLRM."""
