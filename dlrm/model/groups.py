# SPDX-License-Identifier: Apache-2.0
"""Names of a DLRM's groups of tensors in a checkpoint."""

MLP_GROUP = "mlp"
MLP_OPTIMIZER_GROUP = "mlp_optimizer"
WEIGHT = "weight"


def table_group(index: int) -> str:
    """Returns the name of the group with a feature's table."""
    return f"embedding_{index}"
