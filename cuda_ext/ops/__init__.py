# SPDX-License-Identifier: Apache-2.0
"""The ops that models call. `reference.py` defines each of them.

If compiled kernels were built for the device they run, otherwise the reference does; the results
agree within rounding. `python -m cuda_ext` shows which of them runs and why. A module holds the
entry of an op, its fake kernel and its gradient.
"""

from cuda_ext import RowOptimizer, library
from cuda_ext.ops import registration
from cuda_ext.ops.attention import attention, count_draws
from cuda_ext.ops.bags import embedding_bag
from cuda_ext.ops.inference import JointTable, PackedMlp, dlrm_forward, mlp_forward, pack_mlp
from cuda_ext.ops.interaction import dot_interaction, gather_dot_interaction
from cuda_ext.ops.linear import (
    linear,
    perceptron,
    takes_perceptron,
    weight_gradients_on,
)
from cuda_ext.ops.lookup import (
    NO_BAD_ID,
    embedding_gather,
    joint_rows,
    row_gradient_anchor,
    sparse_embedding,
    stack_ids,
)
from cuda_ext.ops.loss import binary_cross_entropy
from cuda_ext.ops.paging import bring_in_rows, drop_old_pages
from cuda_ext.ops.products import (
    CPU_IS_INTEL,
    add_transposed_product,
    product,
    transposed_product,
)
from cuda_ext.ops.search import PackedRows, pack_rows, scans_rows, top_rows
from cuda_ext.ops.update import (
    ABSENT_ROW,
    row_optimizer_state,
    skips_absent_rows,
    sort_rows,
    sum_by_row,
    update_rows,
)
from cuda_ext.pages import copy_values, expect_random_access, pieces, use_huge_pages
from cuda_ext.reference import bag_of_lookup
from cuda_ext.row_rules import RowStep
from cuda_ext.side_stream import SideStream

__all__ = [
    "ABSENT_ROW",
    "CPU_IS_INTEL",
    "NO_BAD_ID",
    "JointTable",
    "PackedMlp",
    "PackedRows",
    "RowOptimizer",
    "RowStep",
    "SideStream",
    "add_transposed_product",
    "attention",
    "bag_of_lookup",
    "binary_cross_entropy",
    "bring_in_rows",
    "copy_values",
    "count_draws",
    "dlrm_forward",
    "dot_interaction",
    "drop_old_pages",
    "embedding_bag",
    "embedding_gather",
    "expect_random_access",
    "gather_dot_interaction",
    "joint_rows",
    "linear",
    "mlp_forward",
    "pack_mlp",
    "pack_rows",
    "perceptron",
    "pieces",
    "product",
    "row_gradient_anchor",
    "row_optimizer_state",
    "scans_rows",
    "skips_absent_rows",
    "sort_rows",
    "sparse_embedding",
    "stack_ids",
    "sum_by_row",
    "takes_perceptron",
    "top_rows",
    "transposed_product",
    "update_rows",
    "use_huge_pages",
    "weight_gradients_on",
]

if library.LOAD_ERROR is None:
    registration.register(library.NAMESPACE)
