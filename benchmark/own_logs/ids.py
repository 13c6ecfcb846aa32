# SPDX-License-Identifier: Apache-2.0
"""Click logs of ids and categories only."""

import datetime
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.own_logs.log import OwnLog
from benchmark.own_logs.tables import as_it_is, fields, in_order, shuffled, zipped

_CONTEXT = ("daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city")
_USES = ("user", "item", *_CONTEXT, "click")


def uses_and_draws(rows: Sequence[dict[str, str]], seed: int = 0) -> Iterator[list[str]]:
    """Yields each use of an app, then two apps that its user never used in the same context.

    Args:
        rows: uses, with the columns of Frappe.
        seed: seed of the draw, in which every app is equally likely.
    """
    items = sorted({row["item"] for row in rows}, key=int)
    used: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        used[row["user"]].add(row["item"])
    # Versions of Python agree on the numbers of random(), not on those of choice().
    generator = random.Random(seed)
    for row in rows:
        context = [row[name] for name in _CONTEXT]
        yield [row["user"], row["item"], *context, "1"]
        drawn = 0
        while drawn < 2:
            item = items[int(generator.random() * len(items))]
            if item not in used[row["user"]]:
                yield [row["user"], item, *context, "0"]
                drawn += 1


def _frappe(path: Path) -> Iterator[Sequence[str]]:
    header, *rows = zipped(path, "Mobile_Frappe/frappe/frappe.csv", "\t")
    yield _USES
    yield from uses_and_draws([dict(zip(header, row, strict=True)) for row in rows])


def libfm(*paths: Path) -> Iterator[Sequence[str]]:
    """Yields the rows of libFM's format: the numbers of the features, then 1 or 0."""
    yield _USES
    for path in paths:
        for label, *features in fields(path, " "):
            codes = [feature.removesuffix(":1") for feature in features if feature]
            yield [*codes, "1" if float(label) > 0 else "0"]


def _minutes(text: str) -> datetime.datetime:
    """Returns the time of texts such as `2017-11-07 9:30`."""
    return datetime.datetime.strptime(text, "%Y-%m-%d %H:%M")


_FRAPPE = "Frappe, Baltrunas et al. 2015, arXiv:1505.03014"
_FRAPPE_TERMS = (
    "for research, with acknowledgement; no redistribution without permission, not commercial"
)

FRAPPE = OwnLog(
    name="frappe",
    kind="ids",
    origin=_FRAPPE,
    files=("github.com/irecsys/CARSKit@0a1789fb08: context-aware_data_sets/Mobile_Frappe.zip",),
    licence=_FRAPPE_TERMS,
    label="1: the user used the app; 0: one of two apps, drawn per use, that the user never used",
    rows=288_609,
    sha256="1035ac3960f3ab6800c07382c215b4341510eac62121f7eb07a146584819fa3b",
    make=shuffled(_frappe),
    changed="raw values; the count of uses is left out, since no row with label 0 has one",
)
FRAPPE_NFM = OwnLog(
    name="frappe_nfm",
    kind="ids",
    origin=f"{_FRAPPE}, in the form of He and Chua 2017 (Neural Factorization Machines)",
    files=(
        "github.com/hexiangnan/neural_factorization_machine@ca2a5d11b9: "
        "data/frappe/frappe.validation.libfm",
        "github.com/hexiangnan/neural_factorization_machine@ca2a5d11b9: "
        "data/frappe/frappe.test.libfm",
    ),
    licence=_FRAPPE_TERMS,
    label="1: the user used the app; 0: one of two apps that the authors drew per use",
    rows=86_582,
    sha256="87b32102fa4b22deea61718b8d2971cd44f50c57aa934912e121ce699c26606f",
    make=shuffled(libfm),
    changed="codes in place of values, numbered across all columns; a random 30% of the log, "
    "its validation and test parts",
)
AMAZON_ACCESS = OwnLog(
    name="amazon_access",
    kind="ids",
    origin="Amazon.com Employee Access Challenge, kaggle.com 2013",
    files=("github.com/pyduan/amazonaccess@f8addfefce: data/train.csv",),
    licence="rules of the competition: only for use in it, no redistribution",
    label="ACTION: 1 the access was granted",
    rows=32_769,
    sha256="7511d3c09a5d3599b62d7d9b567661a685ee31ae63504bbc56fea31ad35bf32b",
    make=shuffled(as_it_is()),
    changed="the publisher's codes in place of names",
)
COUPON = OwnLog(
    name="coupon",
    kind="ids",
    origin="In-vehicle coupon recommendation, UCI 603, Wang et al. 2017",
    files=("github.com/76bubble/DATA3010@ca9faa2463: in-vehicle-coupon-recommendation.csv",),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="Y: 1 the driver takes the coupon",
    rows=12_684,
    sha256="505128db91845b2da48006749a67e9f5c1b5ed41cc0efffc7d4e414e0edd36fa",
    make=shuffled(as_it_is()),
    changed="two names of columns differ from UCI's: cartype, couponType",
)
TMALL = OwnLog(
    name="tmall",
    kind="ids",
    origin="Repeat buyers of Tmall, IJCAI 2015 challenge, tianchi.aliyun.com 42",
    files=(
        "github.com/RongzhengMa/tmall_repurchase_prediction@c80981a53f: data/train_format1.csv",
    ),
    licence="Tianchi: CC BY-NC-SA 4.0; the repository: MIT",
    label="label: 1 a new buyer of the shop buys there again within six months",
    rows=260_864,
    sha256="46baa7133e91d2c74c083be29dfd92e9ef8e843b5fffe3e1fb33ffc66fbd95c5",
    make=shuffled(as_it_is()),
    changed="hashed users and shops; the log of clicks behind it is not in this file",
)
TALKINGDATA = OwnLog(
    name="talkingdata",
    kind="ids",
    origin="TalkingData AdTracking Fraud Detection, kaggle.com 2018, its train_sample.csv",
    files=("github.com/markqle/TalkingData-AdFraud-ML@19e50f1408: train_sample.csv",),
    licence="rules of the competition: only for use in it, no redistribution",
    label="is_attributed: 1 the app was installed after the click",
    rows=100_000,
    sha256="fcfb6f8eb219a902a942757b2d2ba1ddcaaa1ceef4b3a80a554cb03bb841b3e8",
    make=in_order(as_it_is(), "click_time", _minutes),
    changed="the publisher's codes; this copy has times cut to minutes; attributed_time, the time "
    "of the install, is set only for clicks with label 1",
)
AVAZU = OwnLog(
    name="avazu",
    kind="ids",
    origin="Click-Through Rate Prediction, Avazu, kaggle.com 2014",
    files=("github.com/Lapis-Hong/Wide-ResDNN@9889f939de: data/avazu/train.csv",),
    licence="rules of the competition: only for use in it, no redistribution",
    label="click: 1 the banner was clicked",
    rows=8_087,
    sha256="57fc4f3767e662536e7d6f331499b03d861627876f8c925338f27ec52b245e13",
    make=shuffled(as_it_is()),
    changed="8,087 rows of the first hour; the publisher's hashes and codes",
)
