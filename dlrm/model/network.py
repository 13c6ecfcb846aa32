# SPDX-License-Identifier: Apache-2.0
"""The DLRM network. Source: Naumov et al. 2019 (arXiv:1906.00091)."""

from collections.abc import Callable, Sequence
from typing import Any, Generic

import torch
from torch import Tensor, nn

from cuda_ext import ops
from dlrm.config import ModelConfig
from dlrm.nn.embedding import Embeddings, LookupsT, build_embeddings
from dlrm.nn.interaction import build_interaction
from dlrm.nn.mlp import ApexMlp, Mlp, has_apex


class DlrmNetwork(nn.Module, Generic[LookupsT]):
    """Bottom MLP and embeddings, their interaction, and the top MLP.

    Args:
        config: sizes and variants of the network.
        table_sizes: rows of each table, capped at `config.max_table_size`.
        build_tables: builds the embeddings for these sizes.
    """

    def __init__(
        self,
        config: ModelConfig,
        table_sizes: Sequence[int],
        build_tables: Callable[[Sequence[int]], Embeddings[LookupsT]],
    ) -> None:
        super().__init__()
        table_sizes = config.capped(table_sizes)
        self.num_numerical_features = config.num_numerical_features
        # With no numerical feature the bottom MLP sees a constant 1 and learns a bias vector.
        self.bottom_mlp = Mlp(
            max(config.num_numerical_features, 1),
            config.bottom_mlp_sizes,
            final_relu=True,
            batch_norm=config.batch_norm,
        )
        self.embeddings = build_tables(table_sizes)
        self._can_fuse_lookup = config.interaction_op == "cuda_dot" and bool(table_sizes)
        self.interaction = build_interaction(
            config.interaction_op,
            1 + len(table_sizes),
            config.embedding_dim,
            config.dcn_low_rank_dim,
        )
        self.top_mlp = Mlp(
            self.interaction.out_features,
            config.top_mlp_sizes,
            final_relu=False,
            dropout=config.dropout,
            batch_norm=config.batch_norm,
        )
        if self.interaction.num_padding:
            # The padding columns are always zero: zero weights keep them out of weight decay.
            with torch.no_grad():
                self.top_mlp.linears[0].weight[:, -self.interaction.num_padding :] = 0
        self.run_instead(self.bottom_mlp, self.top_mlp)
        if config.optimized_mlp and not config.batch_norm and has_apex():
            self.run_instead(ApexMlp(self.bottom_mlp), ApexMlp(self.top_mlp))

    def forward(self, numerical: Tensor, ids: LookupsT) -> Tensor:
        """Predicts clicks.

        Args:
            numerical: [B, M] floating point, transformed as in the dataset.
            ids: categorical features, as the embeddings take them.

        Returns:
            [B] logits of a click, float32 (or the autocast dtype).
        """
        if (of_few := self._predict_few(numerical, ids)) is not None:
            return of_few
        if self.num_numerical_features == 0:
            numerical = torch.ones(numerical.shape[0], 1, device=numerical.device)
        ids = self.embeddings.prepare(ids)
        # On a GPU autocast brings them to its type; through float32 would be a pass more.
        if not (numerical.is_cuda and torch.is_autocast_enabled("cuda")):
            numerical = numerical.to(torch.float32)
        bottom = self._run_bottom(numerical)
        if self._can_fuse_lookup and self.embeddings.prefers_one_pass():
            features = self.embeddings.interact(ids, bottom)
        else:
            with_tables = bool(self.embeddings.table_sizes)
            vectors = self.embeddings(ids, bottom.dtype) if with_tables else None
            features = self.interaction(bottom, vectors)
        logits: Tensor = self._run_top(features).squeeze(1)
        return logits

    def _predict_few(self, numerical: Tensor, ids: LookupsT) -> Tensor | None:
        """Predicts few samples in one native call, if that is possible."""
        if not self._can_fuse_lookup or self.num_numerical_features == 0:
            return None
        if self._run_bottom is not self.bottom_mlp or self._run_top is not self.top_mlp:
            return None
        bottom = self.bottom_mlp.packed_for_few(numerical)
        top = self.top_mlp.packed_for_few(numerical)
        if bottom is None or top is None or not isinstance(ids, Tensor):
            return None
        table = self.embeddings.joint_table()
        if table is None:
            return None
        return ops.dlrm_forward(numerical, ids, table, bottom, top).squeeze(1)

    def run_instead(self, bottom: nn.Module, top: nn.Module) -> None:
        """Runs other modules in place of the MLPs.

        The parameters of the model stay those of the MLPs.

        Args:
            bottom: maps what `bottom_mlp` maps.
            top: maps what `top_mlp` maps.
        """
        self._run_bottom = bottom
        self._run_top = top

    def reset_embeddings(self) -> None:
        """Draws the embeddings anew, as at the start."""
        self.embeddings.reset_parameters()

    def mlp_parameters(self) -> list[nn.Parameter]:
        """Returns all parameters but the tables, in a fixed order."""
        modules = (self.bottom_mlp, self.interaction, self.top_mlp)
        return [p for module in modules for p in module.parameters()]

    def mlp_state(self) -> dict[str, Tensor]:
        """Returns {name: tensor} of all parameters but the tables."""
        modules = {
            "bottom_mlp": self.bottom_mlp,
            "interaction": self.interaction,
            "top_mlp": self.top_mlp,
        }
        return {
            f"{name}.{key}": value
            for name, module in modules.items()
            for key, value in module.state_dict().items()
        }


class Dlrm(DlrmNetwork[Any]):
    """A DLRM on one device.

    It takes [B, F] int64 ids, or what its tables take.

    Args:
        config: sizes and variants of the network.
        table_sizes: rows of each table, capped at `config.max_table_size`.
        embeddings: the tables; None builds them.
    """

    def __init__(
        self,
        config: ModelConfig,
        table_sizes: Sequence[int],
        embeddings: Embeddings[Any] | None = None,
    ) -> None:
        def build_tables(sizes: Sequence[int]) -> Embeddings[Any]:
            return embeddings or build_embeddings(
                config.embedding_type,
                sizes,
                config.embedding_dim,
                config.hash_indices,
                config.embedding_storage,
                init_std=config.embedding_init,
            )

        super().__init__(config, table_sizes, build_tables)
