# SPDX-License-Identifier: Apache-2.0
"""Click logs of categories and numbers."""

import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmark.own_logs.log import OwnLog
from benchmark.own_logs.tables import as_it_is, member, table, zipped

_ADULT = (
    "age,workclass,fnlwgt,education,education-num,marital-status,occupation,relationship,race,sex,"
    "capital-gain,capital-loss,hours-per-week,native-country,income"
)


def _adult(train: Path, test: Path) -> Iterator[Sequence[str]]:
    """Yields the rows of UCI's test file, then of its training file."""
    yield _ADULT.split(",")
    for path in (test, train):
        for row in table(path):
            if len(row) > 1:  # the first line of the test file is none
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
    sha256="cb49122a4a65f3b2b8a3a86b9c81fe5e883dc439597201fab7ea6e474ce66d11",
    make=_adult,
    changed="both files of UCI, the test file first; blanks and the full stop after its labels "
    "are taken away (both lie compressed in that repository)",
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
    sha256="b44507c26634736d4a0619ec2d7c4b6ff56a2c63cbeb5176d3134e7b25e416f0",
    make=member("bank-full.csv", ";"),
    changed="rows in the order of the calls; commas in place of semicolons",
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
    sha256="16320c9c1ec72448db59aa0a26a0b95401046bef5d02fd3aeb906448e3055e91",
    make=as_it_is(),
    changed="as published: 11 new customers have a blank for TotalCharges",
)
HOTEL = OwnLog(
    name="hotel",
    kind="mixed",
    origin="Hotel booking demand, Antonio, de Almeida and Nunes 2019, Data in Brief 22",
    files=("github.com/huahanqi/562_Final_Project@b132cf757b: hotel_bookings.csv.zip",),
    licence="CC BY 4.0 (the article); the repository states none",
    label="is_canceled: 1 the booking was cancelled",
    rows=119_390,
    sha256="73ad6f8c0a0f6c55ecd438c878b7d916b753a906d539c048720ad10646f9fd18",
    make=_hotel,
    changed="arrival_date, the date of its three columns, is added; NULL stands for missing",
)
JOB_CHANGE = OwnLog(
    name="job_change",
    kind="mixed",
    origin="HR analytics: job change of data scientists, kaggle.com/arashnic 2020",
    files=("github.com/ranjithgithub27/Job_change_prediction@6b89b1b95a: aug_train.csv",),
    licence="CC0 (Kaggle); the repository states none",
    label="target: 1 looks for another job",
    rows=19_158,
    sha256="3d6758b8d3165b4f8a49fb7266c3168c47897f8ff3692ec9b44f01f33562c48e",
    make=as_it_is(),
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
    sha256="da21942c25a10a51a8842907ab01a8530b06232616b17d317441d592a20c4359",
    make=member("dataset_diabetes/diabetic_data.csv"),
    changed="the publisher's codes of patients; ? stands for missing",
)
SHOPPERS = OwnLog(
    name="shoppers",
    kind="mixed",
    origin="Online shoppers purchasing intention, UCI 468, Sakar and Kastro 2018",
    files=("github.com/remijul/dataset@2932bc4200: online_shoppers_intention.csv",),
    licence="CC BY 4.0 (UCI); the repository states none",
    label="Revenue: TRUE, the session ends in a purchase",
    rows=12_330,
    sha256="d8e130ba51532985f93281a73ce299e6ce150cb915769a7962a11e595eadd6a1",
    make=as_it_is(";"),
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
    sha256="3c45867d5e4d8982c33dd777af7b3eb3116cce5dc6ae5eed6c81676726f8fb6e",
    make=as_it_is(),
    changed="the publisher's codes of sex, education and marriage (X2 to X4)",
)
