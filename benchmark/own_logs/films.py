# SPDX-License-Identifier: Apache-2.0
"""Click logs of MovieLens: a film that got four stars or more is a click."""

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmark.own_logs.log import OwnLog
from benchmark.own_logs.tables import fields, shuffled

LIKED = 4
"""Fewest stars with which a rating is a click."""

KEPT = 10
"""Most liked films of a history."""

_USER = ("user", "age", "gender", "occupation", "zip")
_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip


def clicked(stars: str) -> str:
    """Returns the label of a rating."""
    return "1" if int(stars) >= LIKED else "0"


def year(title: str) -> str:
    """Returns the year in brackets at the end of a title, or an empty text."""
    found = re.search(r"\((\d{4})\)\s*$", title)
    return found[1] if found else ""


def with_histories(
    ratings: Iterable[tuple[str, str, str, int]],
) -> Iterator[tuple[str, str, str, int, str]]:
    """Yields ratings in time order, with the films that their users liked before.

    Args:
        ratings: user, film, stars and time, in any order.

    Yields:
        The rating and the last liked films, the latest at the end. Films rated in the same second
        do not count as earlier.
    """
    liked: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=KEPT))
    fresh: defaultdict[str, list[str]] = defaultdict(list)
    latest: dict[str, int] = {}
    for user, film, stars, time in sorted(ratings, key=lambda rating: rating[3]):
        if latest.get(user) != time:
            liked[user].extend(fresh.pop(user, ()))
            latest[user] = time
        yield user, film, stars, time, "|".join(liked[user])
        if int(stars) >= LIKED:
            fresh[user].append(film)


def _hundred_thousand(
    users: Path, films: Path
) -> tuple[dict[str, list[str]], dict[str, tuple[str, str]]]:
    """Reads the attributes of the users of MovieLens-100K, and the year and genres of its films."""
    of_film = {}
    for number, title, _, _, _, *flags in fields(films, "|"):
        genres = [genre for genre, flag in zip(_GENRES, flags, strict=True) if flag == "1"]
        of_film[number] = year(title), "|".join(genres)
    return {user[0]: user for user in fields(users, "|")}, of_film


def _ml_100k(data: Path, users: Path, films: Path) -> Iterator[Sequence[str]]:
    of_user, of_film = _hundred_thousand(users, films)
    yield [*_USER, "film", "year", "genres", "click"]
    for user, film, stars, _ in fields(data, "\t"):
        yield [*of_user[user], film, *of_film[film], clicked(stars)]


def _ml_100k_histories(data: Path, users: Path, films: Path) -> Iterator[Sequence[str]]:
    of_user, of_film = _hundred_thousand(users, films)
    yield [*_USER, "film", "year", "genres", "time", "liked", "click"]
    rows = ((user, film, stars, int(time)) for user, film, stars, time in fields(data, "\t"))
    for user, film, stars, time, liked in with_histories(rows):
        yield [*of_user[user], film, *of_film[film], str(time), liked, clicked(stars)]


def _ml_1m(matlab: Path, users: Path, films: Path) -> Iterator[Sequence[str]]:
    import numpy as np
    from scipy.io import loadmat

    of_user = {row[0]: row[1:] for row in fields(users, "::")}
    of_film = {row[0]: (year(row[1]), row[2]) for row in fields(films, "::")}
    content = loadmat(matlab)
    ratings = np.concatenate([content["train_vec"], content["probe_vec"]])
    ratings = ratings[np.lexsort((ratings[:, 1], ratings[:, 0]))]
    yield ["user", "gender", "age", "occupation", "zip", "film", "year", "genres", "click"]
    for user, film, stars in ratings.astype(str).tolist():
        yield [user, *of_user[user], film, *of_film[film], clicked(stars)]


_TERMS = "GroupLens: for research, no redistribution without permission, not commercial"
_100K = "github.com/dnguyen1196/probabilistic-matrix-factorization@64260871fc: ml-100k/"

ML_100K = OwnLog(
    name="ml_100k",
    kind="mixed",
    origin="MovieLens-100K, GroupLens, Harper and Konstan 2015",
    files=(f"{_100K}u.data", f"{_100K}u.user", f"{_100K}u.item"),
    licence=_TERMS,
    label="click: 1 the film got four or five stars",
    rows=100_000,
    sha256="b56eb4ebc31639eb27dbfd217f3c338bc4f1701bd9e516af66ae70e600d7e1dc",
    make=shuffled(_ml_100k),
    changed="the year is that of the title; the time is left out",
)
ML_100K_HISTORIES = OwnLog(
    name="ml_100k_histories",
    kind="mixed",
    origin="MovieLens-100K, GroupLens, Harper and Konstan 2015",
    files=ML_100K.files,
    licence=_TERMS,
    label="click: 1 the film got four or five stars",
    rows=100_000,
    sha256="941bc78b4b4125b0b2fefdb297ba10d61000404566130b91fc795194110bff93",
    make=_ml_100k_histories,
    changed="ordered by time; liked holds the last ten films that the user liked before",
)
ML_1M = OwnLog(
    name="ml_1m",
    kind="ids",
    origin="MovieLens-1M, GroupLens, Harper and Konstan 2015; its ratings as Salakhutdinov "
    "published them with Bayesian PMF (2008)",
    files=(
        "github.com/faraz107/Bayesian-Probabilistic-Matrix-Factorization@7d853d9b30: moviedata.mat",
        "github.com/Eltallerdedatos/ml-1m@bbfe1952ad: users.dat",
        "github.com/Eltallerdedatos/ml-1m@bbfe1952ad: movies.dat",
    ),
    licence=_TERMS,
    label="click: 1 the film got four or five stars",
    rows=1_000_209,
    sha256="ad119f5346e8bdb465121770e0e7f41bc3d455f285dde0d58bf8b766d27d6f97",
    make=shuffled(_ml_1m),
    changed="all ratings, without their times; age and occupation are the publisher's codes",
)
