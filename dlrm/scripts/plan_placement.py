# SPDX-License-Identifier: Apache-2.0
"""Plans the placement of tables on devices, for any described machine.

python -m dlrm.model.placement --dry_run --world_size 16 --hbm_gib 141
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dlrm.distributed.cost import GIB, Machine, Workload
from dlrm.distributed.placement import PlacementError
from dlrm.distributed.planner import PlannedPlacement, describe, plan
from recsys.data.errors import DatasetError
from recsys.data.feature_spec import FeatureSpec
from recsys.errors import UserError, as_flags

CRITEO_LIMIT_15 = (
    *(7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11),
    *(2209, 10667, 104, 4, 968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35),
)
"""Table sizes of the Criteo terabyte set with --frequency_limit 15, as NVIDIA publishes them."""

CRITEO_CAP_40M = (
    *(39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10),
    *(2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36),
)
"""Table sizes of the same set with ids modulo 40,000,000, as MLPerf v1 trains it."""

CRITEO_LIMIT_3 = (
    *(40553731, 36277, 17215, 7380, 20152, 4, 7113, 1458, 63, 25771174, 1307083, 313515, 11),
    *(2209, 11267, 126, 4, 972, 15, 46585141, 10069807, 35020192, 418728, 12476, 102, 35),
)
"""Estimated sizes with --frequency_limit 3: only their sum is published, 82 GB at 128 columns.

Each is interpolated in logarithms between the published sizes with limits 15 and 0, all with the
one weight that gives this sum.
"""

KNOWN_TABLES = {
    "criteo_limit_15": CRITEO_LIMIT_15,
    "criteo_limit_3": CRITEO_LIMIT_3,
    "criteo_cap_40m": CRITEO_CAP_40M,
}


def argument_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m dlrm.model.placement", description="Plans a placement of tables"
    )
    add = parser.add_argument
    add("--dry_run", action="store_true", help="plan without devices; always so in this program")
    add("--dataset", type=Path, help="folder with feature_spec.yaml, for the sizes of its tables")
    add(
        "--tables",
        default="criteo_limit_15",
        help=f"rows of each table, comma-separated, or one of {', '.join(KNOWN_TABLES)}",
    )
    add("--placement", type=Path, help="file to write the plan to")
    add("--world_size", type=int, default=8, help="number of devices")
    add("--ranks_per_node", type=int, default=8, help="devices that fast links connect")
    add("--hbm_gib", type=float, default=141, help="memory of a device, in GiB")
    add("--hbm_gb_per_s", type=float, default=4300, help="memory bandwidth that lookups reach")
    add("--node_gb_per_s", type=float, default=350, help="from a device to others of its node")
    add("--network_gb_per_s", type=float, default=40, help="from a device to other nodes")
    add("--tflop_per_s", type=float, default=400, help="speed of a device in training")
    add("--overlap", type=float, default=0.5, help="fraction of the exchange behind computation")
    add("--batch_size", type=int, default=65536, help="samples of a step, of all devices together")
    add("--embedding_dim", type=int, default=128)
    add("--bottom_mlp_sizes", default="512,256,128")
    add("--top_mlp_sizes", default="1024,1024,512,256,1")
    add("--num_numerical_features", type=int, default=13)
    add("--wire_bytes", type=int, default=2, help="bytes of an exchanged number: 2 under --amp")
    add("--weight_bytes", type=int, default=4, help="bytes of a number in a table")
    add("--state_bytes_per_row", type=int, default=0, help="optimizer state of a row; 0 for SGD")
    add("--unique_share", type=float, default=0.15, help="distinct rows per lookup of a batch")
    return parser


def workload_of(options: argparse.Namespace) -> Workload:
    """Builds the workload of a training step from the command line.

    Raises:
        UserError: a list of sizes holds something that is no integer.
    """
    if options.dataset is not None:
        sizes = FeatureSpec.load(options.dataset).table_sizes
    else:
        sizes = KNOWN_TABLES.get(options.tables) or _integers("--tables", options.tables)
    return Workload.of_network(
        sizes,
        num_numerical=options.num_numerical_features,
        embedding_dim=options.embedding_dim,
        bottom_mlp_sizes=_integers("--bottom_mlp_sizes", options.bottom_mlp_sizes),
        top_mlp_sizes=_integers("--top_mlp_sizes", options.top_mlp_sizes),
        global_batch=options.batch_size,
        weight_bytes=options.weight_bytes,
        state_bytes_per_row=options.state_bytes_per_row,
        wire_bytes=options.wire_bytes,
        unique_share=options.unique_share,
    )


def machine_of(options: argparse.Namespace) -> Machine:
    """Builds the machine that the command line describes."""
    return Machine(
        world_size=options.world_size,
        ranks_per_node=options.ranks_per_node,
        memory_bytes=options.hbm_gib * GIB,
        memory_bytes_per_s=options.hbm_gb_per_s * 1e9,
        node_bytes_per_s=options.node_gb_per_s * 1e9,
        network_bytes_per_s=options.network_gb_per_s * 1e9,
        flop_per_s=options.tflop_per_s * 1e12,
        overlap=options.overlap,
    )


def _integers(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number.replace("_", "")) for number in text.split(","))
    except ValueError as error:
        raise UserError(f"{flag} must be whole numbers, comma-separated; got {text!r}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Plans, prints and saves a placement; returns the exit status."""
    options = argument_parser().parse_args(arguments)
    try:
        workload = workload_of(options)
        planned: PlannedPlacement = plan(workload, machine_of(options))
        if options.placement is not None:
            planned.placement.save(options.placement)
    except (PlacementError, DatasetError, ValueError, OSError) as error:
        print(f"error: {as_flags(str(error))}", file=sys.stderr)
        return 2
    print("\n".join(describe(planned, workload)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
