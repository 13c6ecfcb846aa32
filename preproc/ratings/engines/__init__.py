# SPDX-License-Identifier: Apache-2.0
"""Engines that turn ratings into sequences beside the embedded one."""
