# SPDX-License-Identifier: Apache-2.0
"""The DLRM network. Source: Naumov et al. 2019 (arXiv:1906.00091)."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cuda_ext import ops
from dlrm.config import ModelConfig
from dlrm.model.clicks import ClickModel
from dlrm.nn.embedding import Embeddings, LookupsT, build_embeddings
from dlrm.nn.id_statistics import IdStatistics
from dlrm.nn.interaction import Interaction, LowRankCross, build_interaction
from dlrm.nn.mlp import ApexMlp, Mlp, has_apex
from dlrm.nn.numerical import NumericalEmbedding
from dlrm.nn.shards import shards_of, tree_sum
from dlrm.nn.table_files import TableFiles


class DenseNetwork(nn.Module):
    """A DLRM without its tables: bottom MLP, interaction and top MLP.

    Args:
        bottom_mlp: maps numerical features to a vector.
        interaction: combines this vector with those of the embeddings.
        top_mlp: maps the result to a logit.
        numerical_embedding: maps numerical features to more vectors; None adds none.
    """

    def __init__(
        self,
        bottom_mlp: Mlp,
        interaction: Interaction,
        top_mlp: Mlp,
        numerical_embedding: NumericalEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.numerical_embedding = numerical_embedding
        self.bottom_mlp = bottom_mlp
        self.interaction = interaction
        self.top_mlp = top_mlp
        if interaction.num_padding:
            # The padding columns are always zero: zero weights keep them out of weight decay.
            with torch.no_grad():
                top_mlp.linears[0].weight[:, -interaction.num_padding :] = 0
        self.run_instead(bottom_mlp, top_mlp)

    def run_instead(self, bottom: nn.Module, top: nn.Module) -> None:
        """Runs other modules in place of the MLPs; the model keeps the parameters of the MLPs."""
        self.run_bottom = bottom
        self.run_top = top

    def forward(
        self,
        numbers: Tensor,
        numerical: Tensor,
        vectors: Tensor | None,
        statistics: Tensor | None,
    ) -> Tensor:
        """Predicts clicks.

        Args:
            numbers: input of the bottom MLP: `numerical`, or [B, 1] ones if M is 0.
            numerical: [B, M] numerical features.
            vectors: [B, F, D] vectors from the tables; None without tables.
            statistics: [B, 2 C] from `IdStatistics`, the first inputs of the top MLP; or None.

        Returns:
            [B, 1] logits.
        """
        bottom = self.run_bottom(numbers)
        logits: Tensor = self.run_top(self.join(bottom, numerical, vectors, statistics))
        return logits

    def join(
        self,
        bottom: Tensor,
        numerical: Tensor,
        vectors: Tensor | None,
        statistics: Tensor | None,
    ) -> Tensor:
        """Returns the input of the top MLP; `bottom` is [B, D], for the others see `forward`."""
        if self.numerical_embedding is not None:
            own: Tensor = self.numerical_embedding(numerical)
            vectors = own if vectors is None else torch.cat([own.to(vectors.dtype), vectors], 1)
        features: Tensor = self.interaction(bottom, vectors)
        if statistics is None:
            return features
        return torch.cat([statistics.to(features.dtype), features], 1)


class DlrmNetwork(ClickModel[LookupsT]):
    """Bottom MLP and embeddings, their interaction, and the top MLP.

    With `config.seeds` = N, there are N such networks. They share only the lookup: a row of a table
    consists of their N vectors.

    Args:
        config: sizes and variants of the network.
        table_sizes: rows of each table, capped at `config.max_table_size`.
        build_tables: builds the embeddings for these sizes, with rows of `config.row_dim`.

    Attributes:
        networks: the N networks; the prediction is the mean of their logits.
        id_statistics: computes more inputs of the top MLPs; None without `config.id_statistics`.
        num_shards: see `add_in_shards`; 0 computes all rows of a batch at once.
    """

    num_shards = 0

    def __init__(
        self,
        config: ModelConfig,
        table_sizes: Sequence[int],
        build_tables: Callable[[Sequence[int]], Embeddings[LookupsT]],
    ) -> None:
        super().__init__()
        table_sizes = config.capped(table_sizes)
        self.id_statistics = (
            IdStatistics(table_sizes, config.id_statistics) if config.id_statistics else None
        )
        self.num_numerical_features = config.num_numerical_features
        num_statistics = 0 if self.id_statistics is None else self.id_statistics.num_numbers
        self._has_numbers = config.num_numerical_features > 0

        def bottom_mlp() -> Mlp:
            # Without numerical features, the input is a constant 1, and the output a learned bias.
            return Mlp(
                max(config.num_numerical_features, 1),
                config.bottom_mlp_sizes,
                final_relu=True,
                batch_norm=config.batch_norm,
            )

        def network(bottom: Mlp) -> DenseNetwork:
            interaction = build_interaction(
                config.interaction_op,
                config.num_vectors(len(table_sizes)),
                config.embedding_dim,
                config.dcn_low_rank_dim,
            )
            top = Mlp(
                num_statistics + interaction.out_features,
                config.top_mlp_sizes,
                final_relu=False,
                dropout=config.dropout,
                batch_norm=config.batch_norm,
            )
            of_numbers = None
            if config.numerical_embedding != "none":
                of_numbers = NumericalEmbedding(
                    config.numerical_embedding,
                    config.num_numerical_features,
                    config.numerical_bins,
                    config.embedding_dim,
                    config.embedding_init,
                )
            return DenseNetwork(bottom, interaction, top, of_numbers)

        bottom = bottom_mlp()
        self.embeddings = build_tables(table_sizes)
        # A tuple, because each call iterates over it and a ModuleList is slower.
        self.networks = (network(bottom), *(network(bottom_mlp()) for _ in range(1, config.seeds)))
        self._registered = nn.ModuleList(self.networks)
        self._can_fuse_lookup = (
            config.interaction_op == "cuda_dot"
            and config.numerical_embedding == "none"
            and not config.id_statistics
            and bool(table_sizes)
            and config.seeds == 1
        )
        if config.optimized_mlp and not config.batch_norm and has_apex():
            for each in self.networks:
                each.run_instead(ApexMlp(each.bottom_mlp), ApexMlp(each.top_mlp))

    @property
    def bottom_mlp(self) -> Mlp:
        """The bottom MLP of the first network."""
        return self.networks[0].bottom_mlp

    @property
    def interaction(self) -> Interaction:
        """The interaction of the first network."""
        return self.networks[0].interaction

    @property
    def top_mlp(self) -> Mlp:
        """The top MLP of the first network."""
        return self.networks[0].top_mlp

    def forward(self, numerical: Tensor, ids: LookupsT) -> Tensor:
        """Predicts clicks.

        Args:
            numerical: [B, M] floating point, transformed as in the dataset.
            ids: categorical features, in the form that the embeddings take.

        Returns:
            [B] logits of a click, float32 or the autocast dtype, the mean over the networks. While
            N > 1 networks are trained: [B, N], the logits of each.
        """
        if (predicted := self._predict_at_once(numerical, ids)) is not None:
            return predicted
        statistics = None if self.id_statistics is None else self.id_statistics(ids)
        ids = self.embeddings.prepare(ids)
        # On a GPU, autocast converts them; converting to float32 first would be one more pass.
        if not (numerical.is_cuda and torch.is_autocast_enabled("cuda")):
            numerical = numerical.to(torch.float32)
        numbers = numerical
        if not self._has_numbers:
            numbers = torch.ones(numerical.shape[0], 1, device=numerical.device)
        if len(self.networks) > 1:
            return self._logits_of_several(numbers, numerical, ids, statistics)
        (network,) = self.networks
        bottom = network.run_bottom(numbers)
        if self._can_fuse_lookup and self.embeddings.prefers_one_pass():
            features = self.embeddings.interact(ids, bottom)
        else:
            with_tables = bool(self.embeddings.table_sizes)
            vectors = self.embeddings(ids, bottom.dtype) if with_tables else None
            features = network.join(bottom, numerical, vectors, statistics)
        logits: Tensor = network.run_top(features).squeeze(1)
        return logits

    def _logits_of_several(
        self, numbers: Tensor, numerical: Tensor, ids: LookupsT, statistics: Tensor | None
    ) -> Tensor:
        networks = self.networks
        vectors: Sequence[Tensor | None] = [None] * len(networks)
        if self.embeddings.table_sizes:
            device = numerical.device.type
            is_half = torch.is_autocast_enabled(device)
            dtype = torch.get_autocast_dtype(device) if is_half else torch.float32
            of_all: Tensor = self.embeddings(ids, dtype)
            vectors = [part.contiguous() for part in of_all.chunk(len(networks), 2)]
        logits = torch.cat(
            [
                network(numbers, numerical, of_network, statistics)
                for network, of_network in zip(networks, vectors, strict=True)
            ],
            1,
        )
        return logits if self.training else logits.mean(1)

    def _predict_at_once(self, numerical: Tensor, ids: LookupsT) -> Tensor | None:
        """Predicts in one native call; returns None if that is not possible or not faster."""
        if not self._can_fuse_lookup or not self._has_numbers:
            return None
        (network,) = self.networks
        bottom_mlp, top_mlp = network.bottom_mlp, network.top_mlp
        if network.run_bottom is not bottom_mlp or network.run_top is not top_mlp:
            return None
        bottom = bottom_mlp.packed_for(numerical)
        if bottom is None or not isinstance(ids, Tensor):
            return None
        table = self.embeddings.joint_table()
        if table is None:
            return None
        top = top_mlp.packed(bottom.weights.dtype)
        return ops.dlrm_forward(numerical, ids, table, bottom, top)

    def add_in_shards(self, num_shards: int) -> None:
        """Multiplies and sums each shard of a batch by itself; see `dlrm.nn.shards`.

        Args:
            num_shards: shards in this process' part of a batch.
        """
        self.num_shards, self._can_fuse_lookup = num_shards, False
        for module in self._registered.modules():
            if isinstance(module, (Mlp, LowRankCross)):
                module.num_shards = num_shards

    def run_instead(self, bottom: nn.Module, top: nn.Module) -> None:
        """Runs other modules in place of the MLPs of the only network.

        Args:
            bottom: takes and returns the same shapes as `bottom_mlp`.
            top: takes and returns the same shapes as `top_mlp`.
        """
        (network,) = self.networks
        network.run_instead(bottom, top)

    @property
    def id_limits(self) -> Sequence[int] | None:
        """Rows of each table; None if ids are hashed."""
        return None if self.embeddings.hash_indices else self.embeddings.table_sizes

    def raise_bad_ids(self) -> None:
        """Refuses ids outside their tables in earlier batches; see `Embeddings`."""
        self.embeddings.raise_bad_ids()

    def set_knots(self, knots: Tensor) -> None:
        """Sets the knots of all numerical embeddings: [M, `numerical_bins` + 1]."""
        for network in self.networks:
            if network.numerical_embedding is not None:
                network.numerical_embedding.set_knots(knots)

    def reset_embeddings(self) -> None:
        """Initialises the embeddings again with random values."""
        self.embeddings.reset_parameters()

    def mlp_parameters(self) -> list[nn.Parameter]:
        """Returns all parameters except the tables, in a fixed order."""
        return [p for module in self.dense_parts().values() for p in module.parameters()]

    def mlp_state(self) -> dict[str, Tensor]:
        """Returns {name: tensor} of all parameters except the tables; see `dense_parts`."""
        return {
            f"{name}.{key}": value
            for name, module in self.dense_parts().items()
            for key, value in module.state_dict().items()
        }

    def dense_parts(self) -> dict[str, nn.Module]:
        """Returns {name: module} of all modules except the tables, in a fixed order.

        Names of the second network begin with `1.`, and so on.
        """
        shared = {} if self.id_statistics is None else {"id_statistics": self.id_statistics}
        return shared | {
            f"{f'{number}.' if number else ''}{name}": module
            for number, network in enumerate(self.networks)
            for name, module in (
                ("bottom_mlp", network.bottom_mlp),
                ("interaction", network.interaction),
                ("top_mlp", network.top_mlp),
                ("numerical_embedding", network.numerical_embedding),
            )
            if module is not None
        }


class Dlrm(DlrmNetwork[Any]):
    """A DLRM on one device.

    It takes [B, F] int64 ids, or the input of the given tables.

    Args:
        config: sizes and variants of the network.
        table_sizes: rows of each table, capped at `config.max_table_size`.
        embeddings: the tables; None builds them.
        files: contain the tables that are built here; None puts them into memory.
    """

    def __init__(
        self,
        config: ModelConfig,
        table_sizes: Sequence[int],
        embeddings: Embeddings[Any] | None = None,
        files: TableFiles | None = None,
    ) -> None:
        super().__init__(
            config,
            table_sizes,
            lambda sizes: embeddings or build_tables(config, sizes, files=files),
        )


def build_tables(
    config: ModelConfig,
    table_sizes: Sequence[int],
    *,
    draws: bool = True,
    files: TableFiles | None = None,
) -> Embeddings[Tensor]:
    """Builds the tables of a model on one device; see `build_embeddings`."""
    return build_embeddings(
        config.embedding_type,
        table_sizes,
        config.row_dim,
        config.hash_indices,
        config.embedding_storage,
        init_std=config.embedding_init,
        draws=draws,
        files=files,
    )


def loss_in_shards(logits: Tensor, labels: Tensor, num_samples: int, num_shards: int) -> Tensor:
    """Returns `sum_of_losses` of a part of a batch, added over its shards in a tree."""
    parts = zip(shards_of(logits, num_shards), shards_of(labels, num_shards), strict=True)
    return tree_sum([sum_of_losses(*part, num_samples) for part in parts])


def sum_of_losses(logits: Tensor, labels: Tensor, num_samples: int | None = None) -> Tensor:
    """Returns the mean loss of one network, or the sum of the mean losses of several.

    Args:
        logits: [B] float32, or [B, N] of N networks.
        labels: [B] float32.
        num_samples: see `ops.binary_cross_entropy`.
    """
    if logits.ndim == 1:
        return ops.binary_cross_entropy(logits, labels, num_samples)
    of_each = labels.repeat_interleave(logits.shape[1])
    return ops.binary_cross_entropy(logits.flatten(), of_each, num_samples or len(labels))
