# SPDX-License-Identifier: Apache-2.0
"""The earlier home of dlrm.distributed, kept for python -m dlrm.model.placement."""
