# SPDX-License-Identifier: Apache-2.0
"""Client of a served model: connection, requests and load tests."""
