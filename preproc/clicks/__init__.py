# SPDX-License-Identifier: Apache-2.0
"""Preprocessing of Criteo click logs: rules, pipeline, engines."""
