# SPDX-License-Identifier: Apache-2.0
"""Settings of low-rank adapters of a trained model."""

import dataclasses
from typing import Literal

from recsys.errors import UserError
from recsys.settings import require_positive, setting

AdapterKind = Literal["none", "lora", "ilora"]

EXPERTS = 4
"""Experts among which `adapter` ilora divides the rank."""
_ALPHA = 16.0
"""Scale of the low-rank product times the rank."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class AdapterConfig:
    """Settings of low-rank adapters."""

    adapter: AdapterKind = setting(
        "none",
        "Train low-rank changes of the linear layers of a loaded model, and nothing else: the same "
        "for every history, or a mixture of experts that the history itself weighs",
    )
    adapter_rank: int = setting(8, "Rank of each adapter, that of all its experts together")

    def __post_init__(self) -> None:
        """Refuses senseless sizes."""
        require_positive(self, "adapter_rank")
        if self.adapter == "ilora" and self.adapter_rank % EXPERTS:
            raise UserError(
                f"`adapter_rank` {self.adapter_rank} cannot be divided among the {EXPERTS} experts "
                "of `adapter` ilora"
            )

    @property
    def scale(self) -> float:
        """Factor of the low-rank product."""
        return _ALPHA / self.adapter_rank

    @property
    def is_constant(self) -> bool:
        """True if all histories have the same weights, which so merge."""
        return self.adapter != "ilora"
