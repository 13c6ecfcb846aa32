# SPDX-License-Identifier: Apache-2.0
"""Logs of users and their items in time order, for BERT4Rec.

`prepare ratings --columns user=user,item=item` reads them; add `timestamp=timestamp` for logs
with times.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.own_logs.log import OwnLog
from benchmark.own_logs.tables import fields, table, with_header

_HEADER = ("user", "item")


def _with_times(path: Path) -> Iterator[Sequence[str]]:
    _, *rows = table(path, "\t")
    return with_header((*_HEADER, "timestamp"), rows)


def of_users(path: Path) -> Iterator[Sequence[str]]:
    """Yields user and item of lines that hold a user and their items in time order."""
    yield _HEADER
    for user, *items in fields(path, " "):
        yield from ([user, item] for item in items)


def of_sessions(path: Path) -> Iterator[Sequence[str]]:
    """Yields session and item of lines that hold the items of a session, padded with 0."""
    yield _HEADER
    for session, items in enumerate(fields(path, ","), 1):
        yield from ([str(session), item] for item in items if item != "0")


def of_pairs(path: Path) -> Iterator[Sequence[str]]:
    """Yields user and item of lines that hold both."""
    yield _HEADER
    yield from fields(path, " ")


def _amazon(name: str, category: str, rows: int, sha256: str) -> OwnLog:
    return OwnLog(
        name=name,
        kind="next_item",
        origin=f"Amazon reviews 2014, {category}, McAuley et al. 2015, as S3-Rec has them",
        files=(f"{_S3REC}{category}.txt",),
        licence="none stated; citation asked for",
        rows=rows,
        sha256=sha256,
        make=of_users,
        changed=_FIVE,
    )


_S3REC = "github.com/aHuiWang/CIKM2020-S3Rec@49a890dcb5: data/"
_FIVE = "users and items with fewer than five actions dropped; numbers in place of ids, no times"

LASTFM = OwnLog(
    name="lastfm",
    kind="next_item",
    origin="Last.fm 2K (artists that users tagged), HetRec 2011, Cantador et al., as S3-Rec has it",
    files=(f"{_S3REC}LastFM.txt",),
    licence="GroupLens: not commercial",
    rows=52_551,
    sha256="f5b92e977104efec387f464856d2a908fbcd03f660d7466908421efee5ba8bdf",
    make=of_users,
    changed=_FIVE,
)
TOYS = _amazon(
    "toys",
    "Toys_and_Games",
    167_597,
    "c741d9c2b1e3a9d12b7a450224f06ed32d22c111cfe24ef5ba281fa73aadf16f",
)
SPORTS = _amazon(
    "sports",
    "Sports_and_Outdoors",
    296_337,
    "684c5e5556acc216904edaa544a5b08ea745fe6b2ea41ba3d433d4f0d7f09c71",
)
YELP = OwnLog(
    name="yelp",
    kind="next_item",
    origin="Yelp's reviews of 2019, as S3-Rec has them",
    files=(f"{_S3REC}Yelp.txt",),
    licence="Yelp dataset terms: academic use, no redistribution",
    rows=316_354,
    sha256="432b05b106fcd1fc2427d6cdc17ba47e5f0248396fac2975ff03b93c93f47553",
    make=of_users,
    changed=_FIVE,
)
VIDEO_GAMES = OwnLog(
    name="video_games",
    kind="next_item",
    origin="Amazon reviews 2014, Video Games, McAuley et al. 2015, as SASRec has them",
    files=("github.com/kang205/SASRec@e3738967fd: data/Video.txt",),
    licence="none stated for the data; SASRec's code: Apache 2.0",
    rows=287_107,
    sha256="515345423d526526afc6de3c5f1b38382a9b66a8368ae8c86d52da9fb65e23be",
    make=of_pairs,
    changed="rare users and items dropped by SASRec; numbers in place of ids, no times",
)
GROCERY = OwnLog(
    name="grocery",
    kind="next_item",
    origin="Amazon reviews 2014, Grocery and Gourmet Food, McAuley et al. 2015, as ReChorus has "
    "them",
    files=("github.com/THUwangcy/ReChorus@e58d752558: data/Grocery_and_Gourmet_Food/train.csv",),
    licence="none stated for the data; ReChorus's code: MIT",
    rows=121_892,
    sha256="c7b7bedb41b809638b79779ccf9c312b2d537ee6e71eb2f88710a3c6221d02d1",
    make=_with_times,
    changed="five-core; numbers in place of ids; without the last two items of each user, which "
    "are in other files",
)
DIGINETICA = OwnLog(
    name="diginetica",
    kind="next_item",
    origin="Diginetica, CIKM Cup 2016, as sessions of items",
    files=("github.com/recohut/datasets@73f92e286f: diginetica/v3/diginetica.csv",),
    licence="none stated",
    rows=579_478,
    sha256="d36140aa883518d9095a5694aff07b927944ee50077139c3bc9863905d02d5bb",
    make=of_sessions,
    changed="sessions in place of users; numbers in place of ids; short sessions dropped",
)
YOOCHOOSE = OwnLog(
    name="yoochoose",
    kind="next_item",
    origin="Yoochoose clicks, RecSys Challenge 2015, as sessions of items",
    files=("github.com/recohut/datasets@73f92e286f: yoochoose/v3/yoochoose.csv",),
    licence="CC BY-NC-ND 4.0 (the challenge); the repository states none",
    rows=406_979,
    sha256="0a11bfd42519ad9507510587a11d7c95d13e04026e8c7726189baca0700f2d4f",
    make=of_sessions,
    changed="a part of the clicks, the last ten of each session; numbers in place of ids",
)
