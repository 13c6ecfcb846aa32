# SPDX-License-Identifier: Apache-2.0
"""Sizes and variants of the network."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Literal

from recsys.data.quantiles import MOST_BINS
from recsys.errors import UserError
from recsys.settings import Not, joined, require_below, require_positive, setting

EmbeddingType = Literal["joint", "joint_fused", "joint_sparse", "multi_table"]
EmbeddingStorage = Literal["float32", "bfloat16"]
InteractionOp = Literal["cuda_dot", "dot", "cat", "dcnv2"]
NumericalEmbeddings = Literal["none", "bins", "piecewise_linear"]

MOST_SLOTS = 1 << 31
"""Most slots of `id_statistics`: products with factors below 2^16 fit in 64 bits."""

_MOST_SEEDS = 256
"""Far more networks than one model gains by; building a million would take hours."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Sizes and variants of the network."""

    num_numerical_features: int = setting(
        13, "Number of numerical features in the dataset, 13 in Criteo's"
    )
    embedding_dim: int = setting(128, "Columns of the embeddings of categorical features")
    bottom_mlp_sizes: tuple[int, ...] = setting(
        (512, 256, 128), "Sizes of the layers of the bottom MLP; the last is --embedding_dim"
    )
    top_mlp_sizes: tuple[int, ...] = setting(
        (1024, 1024, 512, 256, 1), "Sizes of the layers of the top MLP; the last is 1"
    )
    interaction_op: InteractionOp = setting(
        "cuda_dot",
        "Interaction of the features: cuda_dot uses the extension, dot plain PyTorch",
    )
    dcn_low_rank_dim: int = setting(
        512,
        "Rank of each cross layer of --interaction_op dcnv2",
        used_with={"interaction_op": ("dcnv2",)},
    )
    embedding_type: EmbeddingType = setting(
        "joint_fused",
        "Type of the embedding: one joint table updated in place by the fused optimizer "
        "(joint_fused), one joint table with sparse gradients, in the extension (joint_sparse) or "
        "plain PyTorch (joint), or one table per feature (multi_table)",
    )
    embedding_storage: EmbeddingStorage = setting(
        "float32",
        "Number format of the table of --embedding_type joint_fused: float32, or bfloat16 with "
        "stochastic rounding (half the memory)",
    )
    hash_indices: bool = setting(
        False,
        "Compute `index % table size`, so that all indices fit their tables",
    )
    max_table_size: int | None = setting(
        None,
        "Most rows of an embedding table, by default the number of distinct values of its "
        "feature; needs --hash_indices",
    )
    optimized_mlp: bool = setting(
        True,
        "Use apex's optimized implementation of the MLPs, if it is installed",
        resumable=True,
    )
    dropout: float = setting(
        0.0, "Fraction of activations dropped after each hidden layer of the top MLP in training"
    )
    embedding_init: float | None = setting(
        None,
        "Standard deviation of the normal distribution that initialises embeddings. By default, "
        "each table is initialised uniformly within sqrt(1 / rows) of zero, as NVIDIA does: "
        "features with few categories then get large values, which costs quality on many logs",
    )
    numerical_embedding: NumericalEmbeddings = setting(
        "none",
        "Adds a vector of each numerical feature to the interaction, in addition to the bottom "
        "MLP. bins: the vector of the number's quantile bin. piecewise_linear: the position of the "
        "number among the quantiles, mapped to a vector by a linear layer and a ReLU "
        "(arXiv:2203.05556). The quantiles are those of the training rows",
    )
    numerical_bins: int = setting(
        32,
        "Quantile bins of each numerical feature, for --numerical_embedding",
        used_with={"numerical_embedding": Not("none")},
    )
    id_statistics: int = setting(
        0,
        "Slots of a table that counts, for each id and pair of ids, the training rows and the "
        "clicks among them; the top MLP gets both counts of all ids and pairs of a row. A full "
        "table keeps the most frequent ones; 0 turns it off. Only for one process and datasets "
        "without lists",
    )
    seeds: int = setting(
        1,
        "Number of networks, initialised differently and trained together as one model, which "
        "predicts the mean of their logits; N networks take N times as long",
    )
    batch_norm: bool = setting(False, "Normalise each hidden layer of the MLPs over the batch")

    def __post_init__(self) -> None:
        """Refuses layer and table sizes that do not fit together."""
        require_positive(self, "embedding_dim", "dcn_low_rank_dim", "seeds")
        require_below(self, "seeds", _MOST_SEEDS + 1)
        if self.num_numerical_features < 0:
            raise UserError(
                f"`num_numerical_features` must be 0 or more, got {self.num_numerical_features}",
                setting="num_numerical_features",
            )
        if self.id_statistics and not 2 <= self.id_statistics <= MOST_SLOTS:
            raise UserError(
                f"`id_statistics` must be 0 or lie in [2, {MOST_SLOTS}], got {self.id_statistics}",
                setting="id_statistics",
            )
        for name in ("bottom_mlp_sizes", "top_mlp_sizes"):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < 1:
                raise UserError(
                    f"`{name}` must be positive integers, got {joined(sizes)!r}", setting=name
                )
        if self.bottom_mlp_sizes[-1] != self.embedding_dim:
            raise UserError(
                f"`bottom_mlp_sizes` must end with `embedding_dim` ({self.embedding_dim}), "
                f"got {joined(self.bottom_mlp_sizes)}",
                settings=("bottom_mlp_sizes", "embedding_dim"),
            )
        if self.top_mlp_sizes[-1] != 1:
            raise UserError(
                f"`top_mlp_sizes` must end with 1, got {joined(self.top_mlp_sizes)}",
                setting="top_mlp_sizes",
            )
        if self.max_table_size is not None:
            require_positive(self, "max_table_size")
            if not self.hash_indices:
                raise UserError(
                    "`max_table_size` makes tables smaller than their number of ids, so it needs "
                    "`hash_indices`",
                    settings=("max_table_size", "hash_indices"),
                )
        if self.embedding_storage != "float32" and self.embedding_type != "joint_fused":
            raise UserError(
                f"`embedding_storage` {self.embedding_storage} needs `embedding_type` joint_fused, "
                f"not {self.embedding_type}",
                settings=("embedding_storage", "embedding_type"),
            )
        self._check_numerical_embedding()
        if self.embedding_init is not None and not self.embedding_init > 0:
            raise UserError(
                f"`embedding_init` must be positive, got {self.embedding_init}",
                setting="embedding_init",
            )
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must lie in [0, 1), got {self.dropout}", setting="dropout")

    def _check_numerical_embedding(self) -> None:
        if not 2 <= self.numerical_bins <= MOST_BINS:
            raise UserError(
                f"`numerical_bins` must lie in [2, {MOST_BINS}], got {self.numerical_bins}",
                setting="numerical_bins",
            )
        if self.numerical_embedding != "none" and self.num_numerical_features == 0:
            raise UserError(
                f"`numerical_embedding` {self.numerical_embedding}: the dataset has no numerical "
                "features",
                setting="numerical_embedding",
            )

    @property
    def row_dim(self) -> int:
        """Columns of a table: one vector for each network."""
        return self.embedding_dim * self.seeds

    def num_vectors(self, num_tables: int) -> int:
        """Returns how many vectors of a sample interact, including the bottom MLP's output."""
        has_vectors = self.numerical_embedding != "none"
        return 1 + has_vectors * self.num_numerical_features + num_tables

    @property
    def weight_bytes(self) -> int:
        """Bytes of a number in a table."""
        return 2 if self.embedding_storage == "bfloat16" else 4

    def capped(self, table_sizes: Sequence[int]) -> list[int]:
        """Returns the rows of each table, limited to `max_table_size`."""
        return [min(rows, self.max_table_size or rows) for rows in table_sizes]


def combinations_of(table_sizes: Sequence[int]) -> list[int]:
    """Returns the number of values of each feature, and then of each pair of features.

    Args:
        table_sizes: categories of each feature.

    Returns:
        Features in order, then the pairs (0, 1), (0, 2), ..., (1, 2), ...
    """
    return [*table_sizes, *(a * b for a, b in itertools.combinations(table_sizes, 2))]
