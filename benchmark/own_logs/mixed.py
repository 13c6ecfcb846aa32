# SPDX-License-Identifier: Apache-2.0
"""Click logs of categories and numbers."""

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.own_logs.log import OwnLog
from benchmark.own_logs.tables import as_it_is, in_order, member, shuffled, table, zipped

_ADULT = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
    "capital-gain,capital-loss,hours-per-week,native-country,income"
)


def _adult(train: Path, test: Path) -> Iterator[Sequence[str]]:
    """Yields the rows of UCI's test file, then of its training file."""
    yield _ADULT.split(",")
    for path in (test, train):
        for row in table(path):
            if len(row) > 1:  # the first line of the test file is not a row
                yield [field.strip().removesuffix(".") for field in row]


def arrivals(header: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[Sequence[str]]:
    """Yields hotel bookings with the date of arrival as the first column."""
    year, month, day = (
        header.index(f"arrival_date_{part}") for part in ("year", "month", "day_of_month")
    )
    yield ["arrival_date", *header]
    for row in rows:
        date = datetime.datetime.strptime(f"{row[year]} {row[month]} {row[day]}", "%Y %B %d")
        yield [date.date().isoformat(), *row]


def _hotel(path: Path) -> Iterator[Sequence[str]]:
    rows = zipped(path, "hotel_bookings.csv")
    return arrivals(next(rows), rows)


ADULT = OwnLog(
    name="adult",
    kind="mixed",
    origin="Adult (census income), UCI 2, Becker and Kohavi 1996",
    files=(
        "github.com/vukk/lfr@ed62ba9795: data/adult-delve/Source/adult.data",
        "github.com/vukk/lfr@ed62ba9795: data/adult-delve/Source/adult.test",
    ),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="income: >50K",
    rows=48_842,
    sha256="30674ba470f2ff0af26eb7119bf40d265638c0d4d3990352d668474d364d3db9",
    make=shuffled(_adult),
    changed="both files of UCI; blanks, and the full stop after the labels of its test file, are "
    "removed (the repository has both files compressed)",
)
BANK = OwnLog(
    name="bank",
    kind="mixed",
    origin="Bank marketing, UCI 222, Moro, Rita and Cortez 2014",
    files=(
        "github.com/afsarulsm4/Papers-Bank-Term-Deposit-Subscription-Prediction-Using-Machine-"
        "Learning-Python-@5fd6e63f9d: bank+marketing.zip/bank+marketing/bank.zip",
    ),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="y: yes, the client subscribes",
    rows=45_211,
    sha256="e6922304c5089828998c066f0b9cfe9d27d802af1655eaf63203762e31586e7c",
    make=shuffled(member("bank-full.csv", ";")),
    changed="commas in place of semicolons",
)
CHURN = OwnLog(
    name="churn",
    kind="mixed",
    origin="Telco customer churn, a sample of IBM's",
    files=(
        "github.com/IBM/telco-customer-churn-on-icp4d@d5371f5d83: data/Telco-Customer-Churn.csv",
    ),
    licence="Apache 2.0 (the repository)",
    label="Churn: Yes, the customer left",
    rows=7_043,
    sha256="6dc04abd24b907139f39d97328e3be629bd64faf7bef14bf77e406839f0aef73",
    make=shuffled(as_it_is()),
    changed="as published: TotalCharges is blank for 11 new customers",
)
HOTEL = OwnLog(
    name="hotel",
    kind="mixed",
    origin="Hotel booking demand, Antonio, de Almeida and Nunes 2019, Data in Brief 22",
    files=("github.com/huahanqi/562_Final_Project@b132cf757b: hotel_bookings.csv.zip",),
    licence="CC BY 4.0 (the article); the repository states none",
    label="is_canceled: 1 the booking was cancelled",
    rows=119_390,
    sha256="635a33b34394c5cadfa635d4ac4eb9f6235d96185c5c28b73d02c7c9dcc54723",
    make=in_order(_hotel, "arrival_date", str),
    changed="arrival_date, the date of its three columns, is added; NULL means missing",
)
JOB_CHANGE = OwnLog(
    name="job_change",
    kind="mixed",
    origin="HR analytics: job change of data scientists, kaggle.com/arashnic 2020",
    files=("github.com/ranjithgithub27/Job_change_prediction@6b89b1b95a: aug_train.csv",),
    licence="CC0 (Kaggle); the repository states none",
    label="target: 1 looks for another job",
    rows=19_158,
    sha256="eba29a2fe236ea55276c39f1016c1b953cb5be1fd4dd99b5c5c8b83b355c4807",
    make=shuffled(as_it_is()),
    changed="city_development_index is rounded in this copy",
)
DIABETES = OwnLog(
    name="diabetes",
    kind="mixed",
    origin="Diabetes 130-US hospitals 1999-2008, UCI 296, Strack et al. 2014",
    files=("github.com/swatia600/MyDiabetesCare@d350d3a730: data/dataset_diabetes.zip",),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="readmitted: <30 or >30, the patient came back",
    rows=101_766,
    sha256="f99b2cd3dea9db071c81453aab7e33826f639ddbe48cdc28c1ff81be0d9bd41d",
    make=shuffled(member("dataset_diabetes/diabetic_data.csv"), by="patient_nbr"),
    changed="the publisher's codes of patients; ? means missing",
)
SHOPPERS = OwnLog(
    name="shoppers",
    kind="mixed",
    origin="Online shoppers purchasing intention, UCI 468, Sakar and Kastro 2018",
    files=("github.com/remijul/dataset@2932bc4200: online_shoppers_intention.csv",),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="Revenue: TRUE, the session ends in a purchase",
    rows=12_330,
    sha256="e4062885f79a4fffb67d8484caad3fca73d90995cffe5f90cbb558543dd9b1bb",
    make=shuffled(as_it_is(";")),
    changed="commas in place of semicolons",
)
CREDIT_DEFAULT = OwnLog(
    name="credit_default",
    kind="mixed",
    origin="Default of credit card clients, UCI 350, Yeh 2009",
    files=("github.com/fju155447/uci@84670e783a: UCI_Credit_Card.csv",),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="Y: 1 the client does not pay next month",
    rows=30_000,
    sha256="be21f8bfd4262509a071f275dc64fdf956e17cf652ca42acf0b48f1ce428fcf6",
    make=shuffled(as_it_is()),
    changed="the publisher's codes of sex, education and marriage (X2 to X4)",
)
