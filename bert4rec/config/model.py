# SPDX-License-Identifier: Apache-2.0
"""Settings of the network and of its adapters."""

import dataclasses
from typing import Literal

from bert4rec.config.fraction import require_fraction
from recsys.errors import UserError
from recsys.settings import Not, require_positive, setting

Activation = Literal["gelu", "relu", "swiglu"]
Norm = Literal["pre", "post"]
PositionsFrom = Literal["end", "start"]
AdapterKind = Literal["none", "lora", "ilora"]

EXPERTS = 4
"""Experts among which `adapter` ilora divides the rank."""
_ALPHA = 16.0
"""Scale of the low-rank product before it is divided by the rank."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """Settings of the network."""

    max_len: int = setting(100, "Maximum length of a sequence that the model sees")
    emb_dim: int = setting(256, "Dimension of the item embedding and of every layer")
    nhead: int = setting(2, "Attention heads")
    num_layers: int = setting(2, "Transformer blocks")
    ffn_dim: int | None = setting(
        None, "Hidden dimension of the feed-forward networks; by default four times --emb_dim"
    )
    activation: Activation = setting("relu", "Activation of the feed-forward networks")
    norm: Norm = setting("pre", "Normalise before each sublayer of a block, or after it")
    positions_from: PositionsFrom = setting(
        "end", "Count positions from the end of a sequence (left padding) or from its start"
    )
    head: Literal["untied", "tied"] = setting(
        "untied", "Score items with separate vectors (untied) or with the item embedding (tied)"
    )
    head_transform: bool = setting(
        False, "Apply a linear layer, GELU and normalisation before scoring items"
    )
    item_init: Literal["normal", "neighbours"] = setting(
        "normal",
        "Initial item vectors: random (normal), or similar for items that occur near each other in "
        "histories (neighbours)",
    )
    temperature: float | None = setting(
        None,
        "Score items by the cosine of item and history vectors, divided by this temperature; "
        "by default, by their dot product",
    )
    dropout: float = setting(0.1, "Fraction of activations dropped in training")
    attention_dropout: float = setting(0.1, "Fraction of attention weights dropped in training")

    @property
    def hidden_dim(self) -> int:
        """Hidden dimension of a feed-forward network."""
        return self.ffn_dim or 4 * self.emb_dim

    @property
    def expanded_dim(self) -> int:
        """Outputs of the first layer of a feed-forward network, which swiglu halves."""
        return self.hidden_dim * (2 if self.activation == "swiglu" else 1)

    def __post_init__(self) -> None:
        """Refuses sizes that contradict each other."""
        require_positive(self, "max_len", "emb_dim", "nhead", "num_layers")
        if self.ffn_dim is not None:
            require_positive(self, "ffn_dim")
        if self.emb_dim % self.nhead:
            raise UserError(
                f"`emb_dim` {self.emb_dim} is not divisible by `nhead` {self.nhead}",
                settings=("emb_dim", "nhead"),
            )
        for name in ("dropout", "attention_dropout"):
            require_fraction(self, name, below_one=True)
        if self.temperature is not None and not self.temperature > 0:
            raise UserError(
                f"`temperature` must be positive, got {self.temperature}", setting="temperature"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """Settings of low-rank adapters."""

    adapter: AdapterKind = setting(
        "none",
        "Train only low-rank changes to the linear layers of a loaded model: the same for every "
        "history (lora), or a mixture of experts that depends on the history (ilora)",
    )
    adapter_rank: int = setting(
        8,
        "Rank of each adapter; for --adapter ilora, the sum over its experts",
        used_with={"adapter": Not("none")},
    )

    def __post_init__(self) -> None:
        """Refuses invalid sizes."""
        require_positive(self, "adapter_rank")
        if self.adapter == "ilora" and self.adapter_rank % EXPERTS:
            raise UserError(
                f"`adapter_rank` {self.adapter_rank} cannot be divided among the {EXPERTS} experts "
                "of `adapter` ilora",
                settings=("adapter_rank", "adapter"),
            )

    @property
    def scale(self) -> float:
        """Factor of the low-rank product."""
        return _ALPHA / self.adapter_rank

    @property
    def is_constant(self) -> bool:
        """True if the change is the same for every history, so that it can be merged."""
        return self.adapter != "ilora"
