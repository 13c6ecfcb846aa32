# SPDX-License-Identifier: Apache-2.0
"""Names of a DLRM's groups of tensors in a checkpoint."""

MLP_GROUP = "mlp"
MLP_OPTIMIZER_GROUP = "mlp_optimizer"
WEIGHT = "weight"


def table_group(index: int) -> str:
    """Names the group of a feature's table in a checkpoint."""
    return f"embedding_{index}"
