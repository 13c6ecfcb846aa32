# SPDX-License-Identifier: Apache-2.0
"""Where the embedding tables of a DLRM lie when several devices train it together."""
