# SPDX-License-Identifier: Apache-2.0
"""The public logs by their names."""

from benchmark.own_logs import films, ids, mixed, next_items, numbers

_ALL = (
    ids.FRAPPE,
    ids.FRAPPE_NFM,
    ids.AMAZON_ACCESS,
    ids.COUPON,
    ids.TMALL,
    ids.TALKINGDATA,
    ids.AVAZU,
    films.ML_1M,
    films.ML_100K,
    films.ML_100K_HISTORIES,
    mixed.ADULT,
    mixed.BANK,
    mixed.CHURN,
    mixed.HOTEL,
    mixed.JOB_CHANGE,
    mixed.DIABETES,
    mixed.SHOPPERS,
    mixed.CREDIT_DEFAULT,
    numbers.MAGIC,
    numbers.ELECTRICITY,
    numbers.GIVE_ME_CREDIT,
    numbers.WEATHER,
    numbers.PULSARS,
    numbers.PHONEME,
    next_items.LASTFM,
    next_items.TOYS,
    next_items.SPORTS,
    next_items.YELP,
    next_items.VIDEO_GAMES,
    next_items.GROCERY,
    next_items.DIGINETICA,
    next_items.YOOCHOOSE,
)

LOGS = {log.name: log for log in _ALL}
