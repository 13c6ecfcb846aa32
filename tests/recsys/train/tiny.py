# SPDX-License-Identifier: Apache-2.0
"""Flags of a training that takes a moment."""

TINY_DLRM = (
    *("--dataset_type=synthetic_gpu", "--base_device=cpu", "--num_numerical_features=3"),
    *("--synthetic_dataset_table_sizes=10,20", "--synthetic_dataset_num_entries=400"),
    *("--embedding_dim=8", "--bottom_mlp_sizes=8", "--top_mlp_sizes=1"),
    *("--batch_size=100", "--test_batch_size=100", "--warmup_steps=0", "--decay_steps=0"),
    *("--lr=0.1", "--num_threads=1"),
)
