# SPDX-License-Identifier: Apache-2.0
"""A client of a served model: connection, requests and load."""
