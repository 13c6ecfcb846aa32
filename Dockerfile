# Training image. Every RUN line is a script of docker/ that runs without an image too (docs/image.md).
#   docker build . -t recsys-recipes
#   docker run --gpus all -it --rm --ipc=host -v "${PWD}/data:/data" recsys-recipes bash
ARG BASE_IMAGE=nvcr.io/nvidia/pytorch:26.07-py3
FROM ${BASE_IMAGE}

# The id of the user who runs it, so that what it writes to a mounted folder belongs to you.
ARG USER_ID=1000
# 1 builds NVIDIA's apex at APEX_REF if the base image lacks it; it is never required.
ARG WITH_APEX=0
ARG APEX_REF=26.09
# Optional groups of pyproject.toml, comma-separated, for example dev,benchmark.
ARG EXTRAS=""
# Index of PyTorch's builds, used if the base image has no torch; empty takes pip's own.
ARG TORCH_INDEX=""
# 1 adds Java and PySpark, and Spark's executors on Kubernetes can start from the image.
ARG WITH_SPARK=0
# 1 leaves out documents and tests of packages, and byte code that training does not need.
ARG SLIM=0
# pip's own settings: a mounted folder of wheels, and 1 to take nothing from an index.
ARG PIP_FIND_LINKS
ARG PIP_NO_INDEX
ARG PIP_NO_COMPILE

# PYTHONSAFEPATH keeps the working directory off the module path, and with it the folder triton/.
ENV PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 \
    PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /workspace/recsys-recipes

COPY docker/ docker/
RUN docker/install_system.sh
COPY pyproject.toml requirements.txt ./
RUN docker/install_torch.sh
RUN docker/install_python.sh
RUN docker/install_spark.sh
RUN docker/install_apex.sh
COPY --chown=${USER_ID}:${USER_ID} . .
RUN docker/build_extension.sh

USER ${USER_ID}
RUN docker/smoke.sh
ENTRYPOINT ["/workspace/recsys-recipes/docker/entrypoint.sh"]
CMD ["bash"]
