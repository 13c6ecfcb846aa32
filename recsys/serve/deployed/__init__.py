# SPDX-License-Identifier: Apache-2.0
"""Deployed models: settings that are kept, served versions, changes without a checkpoint."""
