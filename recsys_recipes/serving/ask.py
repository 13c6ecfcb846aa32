# SPDX-License-Identifier: Apache-2.0
r"""Talks to a model on a Triton server, over HTTP or gRPC.

    recsys-recipes ask --url 127.0.0.1:8000 --model dlrm
    recsys-recipes ask --url 127.0.0.1:8000 --model dlrm --request request.json
    recsys-recipes ask --url 127.0.0.1:8000 --model bert4rec --mode page --dataset /data/ml-1m
    recsys-recipes ask --url 127.0.0.1:8000 --model dlrm --mode test \
        --dataset /data/dlrm/binary_dataset --checkpoint /checkpoints/dlrm
    recsys-recipes ask --url 127.0.0.1:8000 --model dlrm --mode load \
        --dataset /data/dlrm/binary_dataset --batch_sizes 1,64 --concurrency 1,4,16
    recsys-recipes ask --url 127.0.0.1:8000 --model dlrm --mode perf_input \
        --dataset /data/dlrm/binary_dataset --perf_input rows.json

Without --request it prints the model's inputs and outputs. --request sends the requests of a file,
one JSON object per line (- reads standard input), and prints the answers; --canary 0.1
--canary_version 3 sends a tenth of them to another version. --mode page (extra `page`) opens a page
in the browser: recommendations for a history picked by title or, for a model of clicks deployed
with --raw, the score of a line of a click log and the effect of each field. --mode test evaluates
the test split and exits 1 if the server's replies differ from the checkpoint's. --mode load
measures latency and throughput. --mode perf_input writes rows for NVIDIA's perf_analyzer
(--input-data) and sends nothing. These three modes take samples of a dataset of clicks for models
of clicks, and histories of a dataset of ratings for models of ratings.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from absl import flags

from dlrm.config import DataConfig
from recsys import program
from recsys.data.sequences.files import read_item_map
from recsys.errors import FAILED, UserError
from recsys.flags import refuse_unused, values_from_flags
from recsys.interruption import StopRequest
from recsys.program import fail, open_in_browser, print_line
from recsys.ratings.item_names import ItemNames
from recsys.serve.client.arrivals import (
    ARRIVALS_HEAD,
    ArrivalsResult,
    find_largest_rate,
    measure_arrivals,
)
from recsys.serve.client.canary import canary
from recsys.serve.client.connection import (
    Endpoint,
    Protocol,
    predict_in_order,
)
from recsys.serve.client.load import TABLE_HEAD, measure_load
from recsys.serve.client.perf_input import write_perf_input
from recsys.serve.client.requests import Arrays
from recsys.serve.signature import FACTORS, Signature
from recsys.settings import (
    MOST_THREADS,
    REQUIRED,
    Not,
    joined,
    require_positive,
    section_from_dict,
    setting,
)
from recsys.train.origin import ignore_fingerprint
from recsys_recipes.models import stored_clicks, stored_ratings
from recsys_recipes.serving.page import gradio, served
from recsys_recipes.serving.page.clicks import clicks_page
from recsys_recipes.serving.page.items import items_page
from recsys_recipes.serving.request_file import of_line, read_requests

_LOAD_REQUESTS = 64
"""Distinct requests of a load test; a single one would stay in the processor's cache."""
_NOT_COMPARED = "Only with --checkpoint is the dataset compared with that of the model's training"
_LARGEST = 1e6
"""Largest number of seconds, and largest rate."""
_LOOK_S = 0.1
"""Seconds between two checks for a signal."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClientOptions:
    """Settings of this program."""

    url: str = setting(
        REQUIRED,
        "host:port, http://host:port or grpc://host:port, as `recsys-recipes serve` prints them",
    )
    protocol: Protocol = setting("http", "Protocol of the requests")
    model: str = setting("dlrm", "Name of the model on the server")
    version: str = setting("", "Version of the model; by default the one that is served")
    canary: float = setting(
        0.0,
        "Fraction of the requests sent to --canary_version; the same requests each time",
        used_with={"mode": ("request",)},
    )
    canary_version: int | None = setting(None, "Version to try in addition to --version")
    timeout_s: float = setting(60.0, "Seconds to wait for each answer of the server")
    mode: Literal["request", "page", "test", "load", "perf_input"] = setting(
        "request",
        "Send requests, open a page in the browser, evaluate a split, measure latency and "
        "throughput, or write rows for perf_analyzer",
    )
    request: str | None = setting(
        None,
        "File of requests, a JSON object per line; - is standard input",
        used_with={"mode": ("request", "load", "perf_input")},
    )
    dataset: str | None = setting(
        None,
        "Dataset folder whose rows are sent; --mode page uses its titles or categories",
        used_with={"mode": ("page", "test", "perf_input", "load"), "request": (None,)},
    )
    dataset_type: Literal["split", "binary", "memmap", "parquet"] = setting(
        "split", "Type of a Criteo dataset", used_with={"dataset": Not(None)}
    )
    eval_split: Literal["test", "validation"] = setting(
        "test", "Split of the dataset", used_with={"dataset": Not(None)}
    )
    checkpoint: Path | None = setting(
        None, "Deployed checkpoint to compare with in --mode test", used_with={"mode": ("test",)}
    )
    ignore_fingerprint: bool = ignore_fingerprint()
    batch_size: int = setting(
        4096, "Rows of a request in --mode test", used_with={"mode": ("test",)}
    )
    tolerance: float = setting(
        1e-5, "Largest allowed difference of a logit or score", used_with={"checkpoint": Not(None)}
    )
    auc_tolerance: float = setting(
        1e-6, "Largest allowed difference of the AUC", used_with={"checkpoint": Not(None)}
    )
    ranking_tolerance: float = setting(
        1e-4, "Largest allowed difference of HR@10 and NDCG@10", used_with={"checkpoint": Not(None)}
    )
    batch_sizes: tuple[int, ...] = setting(
        (1, 64, 4096), "Rows of a request in --mode load", used_with={"mode": ("load",)}
    )
    concurrency: tuple[int, ...] = setting(
        (1,),
        "Requests in flight; several numbers for --mode load",
        used_with={"mode": ("test", "load")},
    )
    seconds: float = setting(
        5.0, "Length of a measurement in --mode load", used_with={"mode": ("load",)}
    )
    request_rate: float | None = setting(
        None,
        "Requests per second in --mode load, which arrive at random times whatever the server "
        "does; latency counts from the arrival. By default each client waits for its reply",
        used_with={"mode": ("load",)},
    )
    p99_ms: float | None = setting(
        None,
        "In --mode load, find the largest --request_rate whose 99th percentile of the latency is "
        "at most this",
        used_with={"mode": ("load",)},
    )

    perf_input: Path | None = setting(
        None,
        "File that --mode perf_input writes, for --input-data of perf_analyzer",
        used_with={"mode": ("perf_input",)},
    )
    perf_rows: int = setting(
        1024, "Maximum number of rows of --perf_input", used_with={"mode": ("perf_input",)}
    )
    port: int = setting(
        0, "Port of --mode page, on 127.0.0.1; 0 takes a free one", used_with={"mode": ("page",)}
    )
    no_browser: bool = setting(
        False,
        "Only print the address of --mode page, and open no browser",
        used_with={"mode": ("page",)},
    )

    def __post_init__(self) -> None:
        """Refuses settings that need another, and numbers below 1."""
        require_positive(self, "batch_size", "perf_rows")
        for name, most in (("batch_sizes", 2**31), ("concurrency", MOST_THREADS)):
            numbers = getattr(self, name)
            if not numbers or not 1 <= min(numbers) <= max(numbers) <= most:
                raise UserError(
                    f"`{name}` must be positive integers, got {joined(numbers)!r}; at most {most}",
                    setting=name,
                )
        if not 0 <= self.canary <= 1:
            raise UserError(f"`canary` must lie in [0, 1], got {self.canary}", setting="canary")
        if (self.canary > 0) != (self.canary_version is not None) or (
            self.canary and self.request is None
        ):
            raise UserError(
                "`canary`, `canary_version` and `request` must be given together",
                settings=("canary", "canary_version", "request"),
            )
        if self.mode != "load" and len(self.concurrency) > 1:
            raise UserError(
                "`concurrency`: several numbers are only for `mode` load",
                settings=("concurrency", "mode"),
            )
        for name in ("timeout_s", "seconds", "request_rate", "p99_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= _LARGEST:
                raise UserError(
                    f"`{name}` must be above 0, at most {_LARGEST:g}, got {value}", setting=name
                )
        if self.mode == "test" and self.dataset is None:
            raise UserError("`mode` test needs `dataset`", settings=("mode", "dataset"))
        if self.mode in ("load", "perf_input") and self.dataset is None and self.request is None:
            raise UserError(
                f"`mode` {self.mode} needs `dataset`, or `request`",
                settings=("mode", "dataset", "request"),
            )
        if self.mode == "perf_input" and self.perf_input is None:
            raise UserError(
                "`mode` perf_input needs the file `perf_input`", settings=("mode", "perf_input")
            )

    @property
    def data(self) -> DataConfig:
        """The Criteo dataset and split."""
        return DataConfig(
            dataset=self.dataset, dataset_type=self.dataset_type, eval_split=self.eval_split
        )

    @property
    def dataset_folder(self) -> Path:
        """Folder of a dataset of ratings."""
        return Path(self.dataset or "")


SECTIONS: dict[type, str] = {ClientOptions: "client"}
"""Sections of the flags -> their headings."""


def run(flag_values: flags.FlagValues) -> int:
    """Talks to the server; returns 1 for wrong replies."""
    values, given = values_from_flags(flag_values, SECTIONS)
    options = section_from_dict(ClientOptions, values)
    refuse_unused(flag_values, values, SECTIONS)
    with Endpoint(
        options.url, options.model, options.version, options.protocol, options.timeout_s
    ) as endpoint:
        modes: dict[str, Callable[[ClientOptions, Endpoint], int]] = {
            "request": answer,
            "page": show_page,
            "test": test,
            "load": functools.partial(load, sizes_are_given="batch_sizes" in given),
            "perf_input": write_rows,
        }
        return modes[options.mode](options, endpoint)


def main(argv: Sequence[str]) -> int:
    """Returns 0, 1 for wrong replies, 2 for an error."""
    return program.run_command(run, program.new_flags(SECTIONS), argv, __doc__)


def answer(options: ClientOptions, endpoint: Endpoint) -> int:
    """Sends a file's requests; without one, prints the model's signature."""
    if options.request is None:
        print_line(
            f"{endpoint.model} at {endpoint.url}, "
            f"{f'at most {most}' if (most := endpoint.max_batch_size) else 'any number of'} rows a "
            "request"
        )
        signature = endpoint.signature
        for role, tensors in (("takes", signature.inputs), ("gives", signature.outputs)):
            for tensor in tensors:
                dims = ", ".join("any" if n == -1 else str(n) for n in ("rows", *tensor.shape))
                may = " (may be left out)" if tensor.optional else ""
                of = f" of {', '.join(tensor.columns)}" if tensor.columns else ""
                print_line(f"  {role} {tensor.name}: {tensor.dtype} [{dims}]{may}{of}")
        if signature.recommends and signature.inputs[0].dtype == "int64":
            print_line(
                "Items are item numbers of the dataset, from 1, not ids of the raw ratings; "
                "`recsys-recipes deploy --raw_ids DATASET` makes a model that takes raw ids"
            )
        return 0
    versions: contextlib.AbstractContextManager[Callable[[Arrays], Endpoint]] = (
        contextlib.nullcontext(lambda _: endpoint)
        if options.canary_version is None
        else canary(endpoint, options.canary_version, options.canary)
    )
    answered: Counter[str] = Counter()
    with versions as choose:
        for where, request in read_requests(endpoint, options.request):
            chosen = choose(request)
            with of_line(where):
                reply = {name: array.tolist() for name, array in chosen.send(request).items()}
            if options.canary_version is not None:  # name the version that answered
                reply = {"model_version": int(chosen.version), **reply}
                answered[chosen.version] += 1
            print_line(json.dumps(reply, default=bytes.decode))  # strings are UTF-8 bytes
    if options.canary_version is not None:
        counts = ", ".join(f"version {name} {count}" for name, count in sorted(answered.items()))
        print(f"answered: {counts}", file=sys.stderr)
    return 0


def show_page(options: ClientOptions, endpoint: Endpoint) -> int:
    """Serves a page for the model until a signal."""
    gr, dataset = gradio(), Path(options.dataset) if options.dataset else None
    make = items_page if endpoint.signature.recommends else clicks_page
    rows = (
        next((rows for _, rows in dataset_requests(options, endpoint, 64)), {}) if dataset else {}
    )
    page = make(gr, endpoint, dataset, rows)
    endpoint.close()  # the page opens its own connections; this one would delay a stopping server
    with StopRequest() as stop, served(gr, page, options.port) as url:
        print_line(f"{options.model} at {options.url}: {url}\nCtrl-C stops the page.")
        if not options.no_browser:  # in a thread: some browsers return only when closed
            threading.Thread(target=open_in_browser, args=(url,), daemon=True).start()
        while stop.signal_name is None:
            time.sleep(_LOOK_S)
    return 0


def raw_ids(options: ClientOptions, signature: Signature) -> ItemNames | None:
    """Reads the raw item ids; None if the model takes item numbers."""
    if signature.inputs[0].dtype != "string":
        return None
    return ItemNames(read_item_map(options.dataset_folder).raw.to_pylist())


def test(options: ClientOptions, endpoint: Endpoint) -> int:
    """Evaluates the model on a split, and compares it with a checkpoint."""
    (concurrency,) = options.concurrency
    size = min(options.batch_size, endpoint.max_batch_size or options.batch_size)
    if endpoint.signature.recommends:
        return test_ranking(options, endpoint, concurrency, size)
    # Imported late: torch takes seconds, and a typo is refused before.
    from dlrm.serve.score import check_dataset_of, score_served_split

    model, check_ids = None, True
    if options.checkpoint is not None:
        stored = stored_clicks(options.checkpoint)
        check_dataset_of(stored, options.data, ignore_fingerprint=options.ignore_fingerprint)
        has_lists = any(tensor.name == FACTORS for tensor in endpoint.signature.inputs)
        model, check_ids = stored.load(has_lists=has_lists), not stored.hash_indices
    scored = score_served_split(
        options.data,
        endpoint.signature,
        lambda requests: predict_in_order(endpoint, requests, concurrency),
        size,
        model,
        check_ids=check_ids,
    )
    metrics = scored.served
    print_line(
        f"{metrics.num_rows} rows: auc {metrics.auc:.6f}, log loss {metrics.log_loss:.6f}, "
        f"calibration {metrics.calibration:.4f}, {scored.rows_per_s:,.0f} rows/s, by "
        f"{versions(endpoint)}"
    )
    if scored.offline is None or scored.largest_difference is None:
        print_line(_NOT_COMPARED)
        return 0
    print_line(
        f"checkpoint: auc {scored.offline.auc:.6f}, log loss {scored.offline.log_loss:.6f}; "
        f"largest difference of a logit {scored.largest_difference:.2g}"
    )
    differences = {"AUC": metrics.auc - scored.offline.auc}
    return verdict(options, endpoint, scored.largest_difference, differences, "auc_tolerance")


def test_ranking(options: ClientOptions, endpoint: Endpoint, concurrency: int, size: int) -> int:
    """Evaluates the rankings of a model of ratings, and compares them with a checkpoint."""
    from recsys.ratings import served_split

    stored = None if options.checkpoint is None else stored_ratings(options.checkpoint)
    sequences = served_split.open_dataset(
        options.dataset_folder, stored, ignore_fingerprint=options.ignore_fingerprint
    )
    signature, names = endpoint.signature, raw_ids(options, endpoint.signature)
    history, items = signature.inputs[0].name, signature.outputs[0].name

    def answer(requests: Iterable[Arrays]) -> Iterator[Arrays]:
        if names is None:
            yield from predict_in_order(endpoint, requests, concurrency)
            return
        named = ({**request, history: names.names(request[history])} for request in requests)
        for reply in predict_in_order(endpoint, named, concurrency):
            yield {**reply, items: names.numbers(reply[items])}

    scored = served_split.score_served_split(
        sequences,
        options.eval_split,
        signature,
        answer,
        size,
        None if stored is None else stored.open_model(),
    )

    def shown(metrics: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {value:.6f}" for name, value in metrics.items())

    print_line(
        f"{scored.num_users} users: {shown(scored.served)}, {scored.users_per_s:,.0f} users/s, by "
        f"{versions(endpoint)}"
    )
    if scored.met_before:
        print_line(
            f"{scored.met_before} of them already have the true item in their history; lists leave "
            "it out, so they count as misses"
        )
    if scored.offline is None or scored.largest_difference is None:
        print_line(_NOT_COMPARED)
        return 0
    print_line(
        f"checkpoint: {shown(scored.offline)}; largest difference of a score "
        f"{scored.largest_difference:.2g}"
    )
    differences = {name: scored.served[name] - value for name, value in scored.offline.items()}
    return verdict(options, endpoint, scored.largest_difference, differences, "ranking_tolerance")


def versions(endpoint: Endpoint) -> str:
    """Names the versions that answered."""
    return f"version {', '.join(map(str, sorted(endpoint.answered)))}"


def verdict(
    options: ClientOptions,
    endpoint: Endpoint,
    largest: float,
    of_metrics: Mapping[str, float],
    metric_tolerance: str,
) -> int:
    """Returns 0 for replies within the tolerances, else 1 with a message."""
    of_value = "logit or score"
    limits = {name: (abs(value), metric_tolerance) for name, value in of_metrics.items()}
    beyond = [
        f"{name} differs by {value:.2g} (`{limit}` {getattr(options, limit):g})"
        for name, (value, limit) in ({of_value: (largest, "tolerance")} | limits).items()
        if not value <= getattr(options, limit)  # NaN is refused too
    ]
    if not beyond:
        return 0
    fail(
        f"the server's answers differ from those of {options.checkpoint}, with "
        f"{versions(endpoint)}: "
        f"{', '.join(beyond)}"
    )
    return FAILED


def dataset_requests(
    options: ClientOptions, endpoint: Endpoint, size: int
) -> Iterator[tuple[int, Arrays]]:
    """Yields (number of rows, request) of --eval_split: `size` rows, or fewer in the last one."""
    signature = endpoint.signature
    if not signature.recommends:
        from dlrm.serve.score import read_requests

        for batch, request in read_requests(options.data, signature, size):
            yield len(batch), request
        return
    from recsys.ratings import served_split

    sequences = served_split.open_dataset(options.dataset_folder, None)
    names, history = raw_ids(options, signature), signature.inputs[0].name
    for users in served_split.read_requests(sequences, options.eval_split, signature, size):
        request = dict(users.arrays)
        if names is not None:
            request[history] = names.names(request[history])
        yield len(users), request


def write_rows(options: ClientOptions, endpoint: Endpoint) -> int:
    """Writes rows of a dataset, or of --request, for perf_analyzer."""
    assert options.perf_input is not None
    if options.request is not None:
        requests = (request for _, request in read_requests(endpoint, options.request))
    else:  # a history that is sent by itself is not padded to the length of others
        size = 1 if endpoint.signature.recommends else options.perf_rows
        requests = (request for _, request in dataset_requests(options, endpoint, size))
    batched = endpoint.max_batch_size is not None
    rows = write_perf_input(options.perf_input, requests, options.perf_rows, batched=batched)
    if not rows:
        raise UserError(f"`perf_input`: {options.dataset} has no rows", setting="perf_input")
    print_line(f"{options.perf_input}: {rows} rows for perf_analyzer --input-data")
    return 0


def load(options: ClientOptions, endpoint: Endpoint, *, sizes_are_given: bool) -> int:
    """Measures latency and throughput by batch size and number of clients."""
    loads: Iterable[list[Arrays]]
    if options.request is None:
        sizes = load_sizes(options, endpoint, sizes_are_given)
        loads = (full_requests(options, endpoint, size, _LOAD_REQUESTS) for size in sizes)
    elif sizes_are_given:
        raise UserError(
            "`batch_sizes` is only for `dataset`; a line of `request` decides its own rows",
            settings=("batch_sizes", "dataset", "request"),
        )
    else:
        loads = [[request for _, request in read_requests(endpoint, options.request)]]
    at_rates = options.request_rate is not None or options.p99_ms is not None
    print_line(ARRIVALS_HEAD if at_rates else TABLE_HEAD)
    for requests in loads:
        for clients in options.concurrency:
            if at_rates:
                _measure_arrivals(options, endpoint, requests, clients)
            else:
                print_line(measure_load(endpoint, requests, clients, options.seconds).table_row())
    return 0


def full_requests(
    options: ClientOptions, endpoint: Endpoint, size: int, count: int
) -> list[Arrays]:
    """Returns the first requests of a dataset that have `size` rows."""
    sized = dataset_requests(options, endpoint, size)
    full = (request for rows, request in sized if rows == size)
    return list(itertools.islice(full, count))


def load_sizes(options: ClientOptions, endpoint: Endpoint, are_given: bool) -> list[int]:
    """Returns the batch sizes that fit; refuses one that the user gave, or if none fits."""
    fitting, limit = [], endpoint.max_batch_size
    for size in options.batch_sizes:
        if limit is not None and size > limit:
            reason = f"{endpoint.model} takes at most {limit} rows in a request"
        elif not full_requests(options, endpoint, size, 1):
            reason = f"{options.dataset} has fewer rows"
        else:
            fitting.append(size)
            continue
        if are_given or not fitting:
            raise UserError(f"`batch_sizes` {size}: {reason}", setting="batch_sizes")
        print_line(f"Skipped {size} rows a request: {reason}")
    return fitting


def _measure_arrivals(
    options: ClientOptions, endpoint: Endpoint, requests: list[Arrays], clients: int
) -> None:
    def measure(rate: float) -> ArrivalsResult:
        result = measure_arrivals(endpoint, requests, rate, clients, options.seconds)
        print_line(result.table_row())
        return result

    first = options.request_rate or 100.0
    if options.p99_ms is None:
        measure(first)
    elif best := find_largest_rate(measure, options.p99_ms / 1e3, first):
        rows = best.rate * best.batch_size
        print_line(f"p99 within {options.p99_ms:g} ms up to {best.rate:,.0f}/s: {rows:,.0f} rows/s")
    else:
        print_line(f"no rate from {first / 1000:g}/s up has a p99 within {options.p99_ms:g} ms")


if __name__ == "__main__":
    sys.exit(main(sys.argv))
