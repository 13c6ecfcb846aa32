# SPDX-License-Identifier: Apache-2.0
"""Groups of batches whose gradients are summed into one step."""

import dataclasses
from collections.abc import Iterator, Sequence

from bert4rec.data.batches import TrainBatch, TrainBatches


@dataclasses.dataclass(frozen=True, slots=True)
class BatchGroup:
    """The batches of one step.

    Attributes:
        parts: the batches.
    """

    parts: tuple[TrainBatch, ...]

    def __len__(self) -> int:
        return sum(len(batch) for batch in self.parts)


class AccumulatedBatches:
    """Joins what several processes would take in a step.

    Args:
        sources: as for processes 0, 1, ... of the run; at least one.
    """

    def __init__(self, sources: Sequence[TrainBatches]) -> None:
        self._sources = sources
        self.batch_size = sum(source.batch_size for source in sources)
        self.num_batches = sources[0].num_batches

    def batches(self, epoch: int, start: int) -> Iterator[BatchGroup]:
        """Yields the groups of an epoch from `start` on."""
        streams = [source.batches(epoch, start) for source in self._sources]
        yield from (BatchGroup(parts) for parts in zip(*streams, strict=True))
