# SPDX-License-Identifier: Apache-2.0
"""Other models of clicks, fitted to the training rows to stand beside a tested DLRM."""
