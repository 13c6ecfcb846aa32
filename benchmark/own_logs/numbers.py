# SPDX-License-Identifier: Apache-2.0
"""Click logs of numbers only."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.own_logs.log import OwnLog
from benchmark.own_logs.tables import as_it_is, fields, member, shuffled, table, with_header

_MAGIC = "fLength,fWidth,fSize,fConc,fConc1,fAsym,fM3Long,fM3Trans,fAlpha,fDist,class"


def _magic(path: Path) -> Iterator[Sequence[str]]:
    rows = table(path)
    return with_header(_MAGIC.split(","), (row for row in rows if row[-1] in "gh"))


def arff(path: Path) -> Iterator[Sequence[str]]:
    """Yields the names of the attributes of Weka's format, then its rows."""
    names = []
    lines = fields(path, ",")
    for line in lines:
        words = ",".join(line).split()
        if words[:1] == ["@data"]:
            break
        if words[:1] == ["@attribute"]:
            names.append(words[1])
    return with_header(names, (line for line in lines if len(line) == len(names)))


MAGIC = OwnLog(
    name="magic",
    kind="numbers",
    origin="MAGIC gamma telescope, UCI 159, Bock 2004",
    files=("github.com/borthakur/Learned-Bloom-Filters@3b744fd63f: magic04.data",),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="class: g, a gamma ray (h: background)",
    rows=19_020,
    sha256="a225197461bd825fbb08d79bbe31e16e7a04765c14594e51824853ff2c1bb6d5",
    make=shuffled(_magic),
    changed="UCI's names of the columns are added",
)
ELECTRICITY = OwnLog(
    name="electricity",
    kind="numbers",
    origin="Electricity prices of New South Wales, Harries 1999; normalised by Gama 2004",
    files=("github.com/cassales/relatorio-fapesp@df26cfad6a: elecNormNew.arff",),
    licence="none stated by the publisher; the repository: GPL 3.0",
    label="class: UP, the price is above the mean of the last day",
    rows=45_312,
    sha256="1990d7ea200d6a7830e15b009311f0f79ea8f07b1986826d140af9867a98879a",
    make=arff,
    changed="half hours in the order of their time; numbers scaled to 0 to 1 by the publisher, "
    "the day of the week a code",
)
GIVE_ME_CREDIT = OwnLog(
    name="give_me_credit",
    kind="numbers",
    origin="Give Me Some Credit, kaggle.com 2011, its cs-training.csv",
    files=(
        "github.com/SureshThyagara1/CYO---Kaggle-Give-Me-Some-Credit@a833420956: "
        "Data/cs-training.csv.zip",
    ),
    licence="rules of the competition: only for use in it, no redistribution",
    label="SeriousDlqin2yrs: 1 ninety days past due within two years",
    rows=150_000,
    sha256="3669cf0acaf0286227db849c2af6649efac47714a66f51f11fb17e71022a23ae",
    make=shuffled(member("cs-training.csv")),
    changed="the row number is a column without a name; NA means missing",
)
WEATHER = OwnLog(
    name="weather",
    kind="numbers",
    origin="Weather at Bellevue, Nebraska, 1949 to 1999, NOAA; Elwell and Polikar 2011",
    files=("github.com/scikit-multiflow/streaming-datasets@f1eb9f068c: weather.csv",),
    licence="none stated; NOAA's data are public",
    label="target: 1 it rains that day",
    rows=18_159,
    sha256="3c38f05bdc5c4cb115f122414c66976e3662c875d96d7199d9e47fc46aff150e",
    make=as_it_is(),
    changed="days in their order; the publisher removed the names of the columns",
)
PULSARS = OwnLog(
    name="pulsars",
    kind="numbers",
    origin="HTRU2, UCI 372, Lyon et al. 2016",
    files=("github.com/zpx01/pulsar-classifier@212dc6555f: HTRU_2.csv",),
    licence="CC BY 4.0 (UCI); the repository: MIT",
    label="class: 1 a pulsar",
    rows=17_898,
    sha256="74e2800c8a5c154a0b21cfc96a385f3f8b00c4b4a1da5f16ac281427802391af",
    make=shuffled(as_it_is()),
    changed="this copy has LF line ends instead of CR, and names of the columns added",
)
PHONEME = OwnLog(
    name="phoneme",
    kind="numbers",
    origin="Phoneme, the ELENA project 1995, OpenML 1489",
    files=(
        "github.com/mindsdb/benchmarks@7a206f40f8: benchmarks/datasets/openml_phoneme/data.csv",
    ),
    licence="public (OpenML); the repository states none",
    label="Class: 2 an oral vowel (1: nasal)",
    rows=5_404,
    sha256="38810f0cd90c600102c93e8ce0cec4263241d666a705b97e4348c7ce20e5fc16",
    make=shuffled(as_it_is()),
    changed="numbers normalised by the publisher",
)
