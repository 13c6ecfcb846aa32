#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the command of a container; Spark on Kubernetes passes `executor` or `driver`.
#   entrypoint.sh executor          with the variables that Spark sets for an executor's pod
#   entrypoint.sh driver ARG ...    spark-submit, with Spark's variables for a driver's pod
#   entrypoint.sh COMMAND ARG ...   the command, through NVIDIA's entrypoint if the base has one
set -euo pipefail

NVIDIA=/opt/nvidia/nvidia_entrypoint.sh

executor() {
  local home options=() variable
  home=$(python3 -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
  for variable in $(compgen -v SPARK_JAVA_OPT_ | sort --version-sort); do
    options+=("${!variable}")
  done
  exec java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-$home/conf}:$home/jars/*:${SPARK_EXTRA_CLASSPATH:-}" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
}

case ${1:-} in
  executor) executor ;;
  driver)
    shift
    exec spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
      --deploy-mode client "$@"
    ;;
esac
if [[ -x $NVIDIA ]]; then exec "$NVIDIA" "$@"; fi
exec "$@"
