# rollog with its engines for GPUs: vLLM generates, Megatron-core trains, Ray places. `docker-compose --profile gpu up` uses it.
#
#   docker build -t rollog .
#
# What was run: nothing of this file; it was written beside machines without Docker. The packages are those of
# `pip install -c constraints.txt '.[train,vllm,megatron,ray]'`.
FROM python:3.12.12-slim-bookworm

# Megatron-core and Triton compile small helpers when they are first used.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/rollog
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[train,vllm,megatron,ray]'

# Nobody needs root in here. Whoever mounts a folder of a host gives the container that folder's owner (compose: `user`).
RUN useradd --create-home --uid 1000 rollog
USER rollog
ENV RAY_USAGE_STATS_ENABLED=0
WORKDIR /work
ENTRYPOINT []
CMD ["rollog", "--help"]
