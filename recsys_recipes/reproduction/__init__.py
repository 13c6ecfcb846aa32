# SPDX-License-Identifier: Apache-2.0
"""Makes a trained run again from its raw files, and compares the two."""
