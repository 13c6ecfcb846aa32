#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Asks a model over HTTP with curl; prints the reply as JSON.
#   ask.sh 127.0.0.1:8000 dlrm features 0.5,1.25,... 3,17,...     a row as the dataset holds it
#   ask.sh 127.0.0.1:8000 dlrm line "$(head -1 day_23 | cut -f2-)"  a line of the log (--raw)
#   ask.sh 127.0.0.1:8000 bert4rec history 50,181,172             item numbers, oldest first
#   ask.sh 127.0.0.1:8000 bert4rec ids B00001,B00007              raw ids (--raw_ids)
set -euo pipefail

if (($# < 4)); then
  sed -n 's/^#   /usage: /p' "$0" >&2
  exit 2
fi
address=$1 model=$2 kind=$3 values=$4

# A tensor of one row: its name, type, number of columns and values.
tensor() {
  printf '{"name": "%s", "datatype": "%s", "shape": [1, %d], "data": [%s]}' "$@"
}
count() { # of values with commas between
  tr ',' '\n' <<<"$1" | wc -l
}

case $kind in
  features)
    categories=${5:?ask.sh: features need numbers and ids}
    inputs="$(tensor numerical FP32 "$(count "$values")" "$values"),
      $(tensor categorical INT64 "$(count "$categories")" "$categories")"
    ;;
  line) # JSON has no tabs in strings
    inputs=$(tensor line BYTES 1 "\"${values//$'\t'/\\t}\"")
    ;;
  history) inputs=$(tensor history INT64 "$(count "$values")" "$values") ;;
  ids) inputs=$(tensor history BYTES "$(count "$values")" "\"${values//,/\",\"}\"") ;;
  *)
    echo "ask.sh: $kind is not one of features, line, history, ids" >&2
    exit 2
    ;;
esac

# --fail-with-body: a refused request is printed with its reason, and the exit status is not 0.
# Without a Content-Type, curl would declare the JSON as a form.
curl --silent --show-error --fail-with-body --max-time 10 \
  --header 'Content-Type: application/json' --data "{\"inputs\": [$inputs]}" \
  "http://$address/v2/models/$model/infer"
echo
