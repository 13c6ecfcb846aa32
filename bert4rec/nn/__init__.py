# SPDX-License-Identifier: Apache-2.0
"""Layers and losses, over tokens packed without padding."""
