#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the images and tries them: `make image-check`. It uses Docker if its daemon answers.
# Otherwise it uses buildah and podman as root, on a base image that debootstrap makes. This needs
# neither a daemon nor an image registry, and the build needs no package index (docs/image.md).
#   image_check.sh [training] [serving] [spark]   (default: training serving)
#   ENGINE       docker or podman (default: the available one)
#   BASE_IMAGE   image with Python and pip to build on (default: python:3.11-slim with Docker, one
#                that debootstrap makes with podman)
#   SUITE        release that debootstrap installs (default: that of this machine)
#   PYTHON       Python of the base's version, whose pip fetches the wheels (default: python3)
#   TORCH_INDEX  index of PyTorch's CPU builds (default: pip's own, whose torch may be for CUDA)
#   WORK         folder for wheels (default: build/image)
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
TORCH_INDEX=${TORCH_INDEX:-}
WORK=${WORK:-build/image}
NAME=recsys-recipes
TRAINING_LIMIT=1300000000 # bytes of the training image on a small base with torch for CPUs
PODMAN_NEEDS=(buildah podman runc debootstrap)

fail() {
  echo "image_check.sh: $*" >&2
  exit 1
}

choose_engine() {
  ENGINE=${ENGINE:-$(docker info >/dev/null 2>&1 && echo docker || echo podman)}
  case $ENGINE in
    docker) docker info >/dev/null || fail "ENGINE=docker: its daemon does not answer" ;;
    podman) require_podman ;;
    *) fail "ENGINE=$ENGINE: expected docker or podman" ;;
  esac
}

require_podman() {
  local program missing=()
  for program in "${PODMAN_NEEDS[@]}"; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  if ((${#missing[@]})); then
    fail "no Docker daemon answers, and these are missing: ${missing[*]}; start Docker, or on" \
      "Debian and Ubuntu, as root: apt-get install --no-install-recommends ${missing[*]}"
  fi
  ((EUID == 0)) || fail "debootstrap and buildah's isolation by chroot need root"
}

# podman requests limits that only CAP_SYS_RESOURCE may raise, and halves its own process limit.
write_podman_settings() {
  local files processes
  files=$(ulimit -Hn) processes=$(ulimit -Hu)
  [[ $processes != unlimited ]] || processes=65536
  export CONTAINERS_CONF=$scratch/containers.conf
  cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=$files:$files", "nproc=$((processes / 4)):$((processes / 4))"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
END
}

# Makes an image of Debian (or Ubuntu) with its Python and pip, unless it exists.
bootstrap_base() {
  local suite=${SUITE:-} root=$scratch/base container
  # shellcheck source=/dev/null
  [[ -n $suite ]] || suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-bookworm}")
  BASE_IMAGE=localhost/$NAME-base:$suite
  if podman image exists "$BASE_IMAGE"; then return; fi
  debootstrap --variant=minbase --components=main,universe \
    --include=python3-pip,python3-dev,ca-certificates "$suite" "$root" >"$scratch/debootstrap.log" ||
    fail "debootstrap failed: $(tail -3 "$scratch/debootstrap.log")"
  rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/usr/share/{doc,info,locale,man}/* \
    "$root"/usr/lib/python3*/config-*/*.a
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$root" / >/dev/null
  buildah config --env PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$container"
  buildah commit --quiet --rm "$container" "$BASE_IMAGE" >/dev/null
  rm -rf "$root"
}

# Arguments: folder, extras. The pip of this machine fetches what the image's pip installs.
fetch_wheels() {
  local folder=$1 version
  version='import sys; print("%d.%d" % sys.version_info[:2])'
  if [[ $("$PYTHON" -c "$version") != "$(run "$BASE_IMAGE" python3 -c "$version")" ]]; then
    fail "PYTHON=$PYTHON has another version than the Python of $BASE_IMAGE, so its pip cannot" \
      "fetch the wheels: set PYTHON to one of that version, or SUITE to another release"
  fi
  rm -rf "$folder" && mkdir -p "$folder"
  "$PYTHON" docker/wanted.py "$2" >"$scratch/wanted.txt"
  local torch pip=("$PYTHON" -m pip wheel --quiet --wheel-dir "$folder")
  torch=$(grep '^torch==' requirements.txt)
  "${pip[@]}" --no-deps ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$torch"
  "${pip[@]}" --find-links "$folder" "$folder"/torch-*.whl --requirement "$scratch/wanted.txt"
}

# Arguments: tag, Dockerfile, extras of pyproject.toml, further build arguments.
build() {
  local tag=$1 dockerfile=$2 extras=$3 options=(--build-arg "BASE_IMAGE=$BASE_IMAGE") argument
  for argument in "TORCH_INDEX=$TORCH_INDEX" "${@:4}"; do options+=(--build-arg "$argument"); done
  if [[ $ENGINE == docker ]]; then
    docker build --quiet --file "$dockerfile" --tag "$NAME:$tag" "${options[@]}" . >/dev/null
    return
  fi
  fetch_wheels "$WORK/wheels" "$extras"
  # Docker's format keeps the HEALTHCHECK; neither crun nor netavark is needed.
  buildah bud --isolation chroot --network host --format docker --file "$dockerfile" \
    --volume "$(realpath "$WORK/wheels"):/wheels:ro" --build-arg PIP_FIND_LINKS=/wheels \
    --build-arg PIP_NO_INDEX=1 --tag "localhost/$NAME:$tag" "${options[@]}" .
}

# Arguments: those of `docker run`; the host's network needs no netavark and no iptables.
run() {
  "$ENGINE" run --rm --ipc=host --network=host "$@"
}

image_of() {
  if [[ $ENGINE == docker ]]; then echo "$NAME:$1"; else echo "localhost/$NAME:$1"; fi
}

size_of() {
  "$ENGINE" image inspect --format '{{.Size}}' "$(image_of "$1")"
}

free_ports() {
  "$PYTHON" - "$1" <<'END'
import socket, sys

sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(each.getsockname()[1] for each in sockets), sep="\n")
END
}

check_training() {
  local size
  build training Dockerfile "" SLIM=1 PIP_NO_COMPILE=1
  run "$(image_of training)" docker/smoke.sh
  size=$(size_of training)
  ((size <= TRAINING_LIMIT)) || fail "the training image has $size bytes, limit" \
    "$TRAINING_LIMIT; is its torch for CPUs (TORCH_INDEX)?"
}

check_serving() {
  local ports image
  mapfile -t ports < <(free_ports 3)
  image=$(image_of serving)
  build serving triton/Dockerfile triton,triton-server EXTRAS=triton,triton-server SLIM=1
  mkdir "$scratch/models"
  chmod 777 "$scratch/models" # written by the user of the image
  run --volume "$scratch/models:/models" --entrypoint docker/tiny_model.sh "$image" /models
  server=$(run --detach --volume "$scratch/models:/models:ro" "$image" --host=127.0.0.1 \
    --http_port="${ports[0]}" --metrics_port="${ports[1]}" --health_port="${ports[2]}")
  until "$ENGINE" logs "$server" 2>&1 | grep -q '^Ready'; do
    "$ENGINE" container inspect "$server" >/dev/null || fail "the server ended"
    sleep 1
  done
  run --entrypoint docker/ask_server.sh "$image" "127.0.0.1:${ports[0]}"
  "$ENGINE" stop "$server" >/dev/null
  server=
}

# Spark's own cluster from the image: a master, a worker and a driver, a container each.
check_spark() {
  local image port cluster data=$scratch/data deploy=org.apache.spark.deploy
  port=$(free_ports 1)
  cluster=spark://127.0.0.1:$port
  image=$(image_of spark)
  build spark Dockerfile spark WITH_SPARK=1 SLIM=1
  mkdir "$data" && chmod 777 "$data"
  spark_master=$(run --detach "$image" spark-class "$deploy.master.Master" --host 127.0.0.1 \
    --port "$port" --webui-port 0)
  spark_worker=$(run --detach --volume "$data:/data" "$image" spark-class "$deploy.worker.Worker" \
    --host 127.0.0.1 --cores 2 --memory 2g --webui-port 0 --work-dir /tmp/work "$cluster")
  local driver=(run --volume "$data:/data" "$image" python3 -m)
  "${driver[@]}" preproc.generate_criteo --output=/data/raw --rows=6000 --days=3
  "${driver[@]}" preproc.clicks --input=/data/raw --output=/data/native --progress=none
  "${driver[@]}" preproc.clicks --input=/data/raw --output=/data/spark --progress=none \
    --engine=spark --master="$cluster" --executor_cores=2 --executor_memory=1g
  "${driver[@]}" dataspec.verify /data/spark
  # the manifests name their engines
  diff --recursive --brief --exclude=manifest.json "$data/native" "$data/spark"
}

finish() {
  local container
  for container in ${server:-} ${spark_worker:-} ${spark_master:-}; do
    "$ENGINE" stop "$container" >/dev/null || true
  done
  rm -rf "$scratch"
}

images=("$@")
((${#images[@]})) || images=(training serving)
for image in "${images[@]}"; do
  case $image in
    training | serving | spark) ;;
    *) fail "unknown image '$image': expected training, serving or spark" ;;
  esac
done
choose_engine
scratch=$(mktemp -d)
trap finish EXIT
if [[ $ENGINE == podman ]]; then
  write_podman_settings
  if [[ -z ${BASE_IMAGE:-} ]]; then bootstrap_base; fi
fi
BASE_IMAGE=${BASE_IMAGE:-python:3.11-slim}
for image in "${images[@]}"; do
  SECONDS=0
  "check_$image"
  printf 'image_check.sh: %s: built and tried in %d s, %d MB\n' "$(image_of "$image")" "$SECONDS" \
    "$(($(size_of "$image") / 1000000))"
done
