# SPDX-License-Identifier: Apache-2.0
"""Datasets that grow by a day: ids that never move, and counts that continue."""
