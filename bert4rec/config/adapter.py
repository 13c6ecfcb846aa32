# SPDX-License-Identifier: Apache-2.0
"""Settings of low-rank adapters of a trained model."""

import dataclasses
from typing import Literal

from bert4rec.config.fraction import require_fraction
from recsys.errors import UserError
from recsys.settings import require_positive, setting

AdapterKind = Literal["none", "lora", "ilora"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """Settings of low-rank adapters."""

    adapter: AdapterKind = setting(
        "none",
        "Train low-rank changes of the linear layers of a loaded model, and nothing else: the same "
        "for every history, or a mixture of experts that the history itself weighs",
    )
    adapter_rank: int = setting(8, "Rank of each adapter, that of all its experts together")
    adapter_alpha: float = setting(16.0, "Scale of the adapters times --adapter_rank")
    adapter_dropout: float = setting(
        0.0, "Share of the inputs of the adapters dropped while training"
    )
    adapter_experts: int = setting(4, "Experts among which --adapter ilora divides the rank")

    def __post_init__(self) -> None:
        """Refuses senseless sizes."""
        require_positive(self, "adapter_rank", "adapter_experts")
        require_fraction(self, "adapter_dropout", below_one=True)
        if self.adapter_alpha <= 0:
            raise UserError(f"`adapter_alpha` must be positive, got {self.adapter_alpha}")
        if self.adapter == "ilora" and self.adapter_rank % self.adapter_experts:
            raise UserError(
                f"`adapter_rank` {self.adapter_rank} cannot be divided among `adapter_experts` "
                f"{self.adapter_experts}"
            )

    @property
    def scale(self) -> float:
        """Factor of the low-rank product."""
        return self.adapter_alpha / self.adapter_rank

    @property
    def is_constant(self) -> bool:
        """True if all histories have the same weights, which so merge."""
        return self.adapter != "ilora" or self.adapter_experts == 1
