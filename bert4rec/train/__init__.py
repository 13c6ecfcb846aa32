# SPDX-License-Identifier: Apache-2.0
"""Training, evaluating and recommending, from settings to figures."""
