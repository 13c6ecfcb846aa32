# SPDX-License-Identifier: Apache-2.0
"""A page in the browser that asks a served model."""
