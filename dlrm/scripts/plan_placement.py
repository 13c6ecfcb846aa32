# SPDX-License-Identifier: Apache-2.0
"""Plans the placement of NVIDIA's DLRM on the devices of a machine that the flags describe.

python -m dlrm.scripts.plan_placement --world_size 16 --hbm_gib 141
"""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dlrm.config import ModelConfig
from dlrm.distributed.cost import GIB, Hardware, Workload
from dlrm.distributed.planner import plan
from recsys import program
from recsys.data.feature_spec import FeatureSpec
from recsys.errors import UserError
from recsys.flags import define_flags as define_settings
from recsys.flags import refuse_unused, values_from_flags
from recsys.settings import section_from_dict, setting

CRITEO_LIMIT_15 = (
    *(7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11),
    *(2209, 10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35),
)
"""Table sizes of the Criteo terabyte set with --frequency_limit 15, as NVIDIA publishes them."""

CRITEO_CAP_40M = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""Table sizes of the same set with ids modulo 40,000,000, as in MLPerf v1."""

CRITEO_LIMIT_3 = (
    *(40553731, 36277, 17215, 7380, 20152, 4, 7113, 1458, 63, 25771174, 1307083, 313515, 11),
    *(2209, 11267, 126, 4, 972, 15, 46585141, 10069807, 35020192, 418728, 12476, 102, 35),
)
"""Estimated sizes with --frequency_limit 3; only their sum is published, 82 GB at 128 columns.

Each is interpolated logarithmically between the published sizes with limits 15 and 0. All use the
same weight, chosen so that the sum is as published.
"""

KNOWN_TABLES = {
    "criteo_limit_15": CRITEO_LIMIT_15,
    "criteo_limit_3": CRITEO_LIMIT_3,
    "criteo_cap_40m": CRITEO_CAP_40M,
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanOptions:
    """Settings of this program."""

    dataset: Path | None = setting(
        None, "Folder with a feature_spec.yaml, from which to take the sizes of the tables"
    )
    tables: str = setting(
        "criteo_limit_15",
        f"Rows of each table, comma-separated, or one of {', '.join(KNOWN_TABLES)}",
        used_with={"dataset": (None,)},
    )
    placement: Path | None = setting(None, "File in which to write the plan")
    world_size: int = setting(8, "Number of devices")
    ranks_per_node: int = setting(8, "Devices connected by fast links")
    hbm_gib: float = setting(141, "Memory of a device, in GiB")
    hbm_gb_per_s: float = setting(4300, "Memory bandwidth reached by lookups, in GB/s")
    node_gb_per_s: float = setting(350, "Bandwidth from a device to others in its node, in GB/s")
    network_gb_per_s: float = setting(40, "Bandwidth from a device to other nodes, in GB/s")
    tflop_per_s: float = setting(400, "Speed of a device in training, in TFLOP/s")
    batch_size: int = setting(65536, "Samples per step, over all devices")
    wire_bytes: int = setting(2, "Bytes of an exchanged number: 2 under --amp")


SECTIONS: dict[type, str] = {PlanOptions: "plan"}
"""{section of the flags: heading}."""


def define_flags(flag_values: flags.FlagValues) -> None:
    """Defines the flags of this command."""
    define_settings(flag_values, SECTIONS)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError as error:
        raise UserError(
            f"`tables` must be comma-separated whole numbers or one of {', '.join(KNOWN_TABLES)}, "
            f"got {text!r}",
            setting="tables",
        ) from error


def config_from_flags(flag_values: flags.FlagValues) -> PlanOptions:
    """Builds the options from the flags."""
    values, _ = values_from_flags(flag_values, SECTIONS)
    refuse_unused(flag_values, values, SECTIONS)
    return section_from_dict(PlanOptions, values)


def run(flag_values: flags.FlagValues) -> None:
    """Prints the plan that the flags describe."""
    options = config_from_flags(flag_values)
    if options.dataset is not None:
        sizes = FeatureSpec.load(options.dataset).table_sizes
    else:
        sizes = KNOWN_TABLES.get(options.tables) or _sizes(options.tables)
    model = ModelConfig()
    workload = Workload.of(model, sizes, options.batch_size, wire_bytes=options.wire_bytes)
    machine = Hardware(
        world_size=options.world_size,
        ranks_per_node=options.ranks_per_node,
        memory_bytes=options.hbm_gib * GIB,
        memory_bytes_per_s=options.hbm_gb_per_s * 1e9,
        node_bytes_per_s=options.node_gb_per_s * 1e9,
        network_bytes_per_s=options.network_gb_per_s * 1e9,
        flop_per_s=options.tflop_per_s * 1e12,
    )
    planned = plan(workload, machine)
    if options.placement is not None:
        planned.placement.save(options.placement)
    for line in planned.cost.describe(planned.placement, workload):
        program.print_line(line)


def main(argv: Sequence[str]) -> int:
    """Runs the program; returns the exit status."""
    values = program.new_flags()
    define_flags(values)
    return program.run_command(run, values, argv, __doc__)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
