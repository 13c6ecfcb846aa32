# SPDX-License-Identifier: Apache-2.0
"""Kills and faults at random moments, after which the same command ends as a whole run does."""
