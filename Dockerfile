# The server and the command-line client, on a GPU node:
#   docker build -t flashbob .
#   docker run --gpus all -p 50051:50051 -p 9464:9464 flashbob
# Without --gpus, the same image serves on the CPU and its log says so. From a plain Debian 12 or Ubuntu 24.04 base, CPU
# engine only: docker build --build-arg BASE=debian:bookworm-slim -t flashbob:cpu .
# BuildKit is needed: DOCKER_BUILDKIT=1 where it is not the default. deploy/README.md says how to run it for others.

# One base for both stages; without it, NVIDIA's.
ARG BASE

FROM ${BASE:-nvidia/cuda:13.0.1-devel-ubuntu24.04} AS build
# Downloaded packages and compiled objects are kept from build to build, outside the image.
RUN rm -f /etc/apt/apt.conf.d/docker-clean
WORKDIR /src
COPY deploy/packages.txt deploy/packages.txt
# Tests and benchmarks are built elsewhere: what they need is the list's last part.
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update -qq && sed '/^# Tests/,$d; s/#.*//' deploy/packages.txt | \
    DEBIAN_FRONTEND=noninteractive xargs apt-get install -y -qq --no-install-recommends >/dev/null
COPY CMakeLists.txt ./
COPY proto proto
COPY kernels kernels
COPY client client
COPY server server
# Compilations at a time; 0: one a core.
ARG JOBS=0
RUN --mount=type=cache,target=/root/.cache/ccache \
    cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DBUILD_TESTING=OFF && \
    cmake --build build -j "$([ "$JOBS" -gt 0 ] && echo "$JOBS" || nproc)" --target flashbob flashbob-server && \
    mkdir -p /out/bin && strip -o /out/bin/flashbob build/flashbob && \
    strip -o /out/bin/flashbob-server build/flashbob-server
# The packages that hold the libraries which the two programs load, under the names that this distribution gives them.
RUN ldd /out/bin/* | awk '$2 == "=>" {print $3}' | xargs -n 1 readlink -f | xargs -n 1 basename | sort -u | \
    sed 's|^|*/|' | xargs dpkg-query -S | cut -d: -f1 | sort -u >/out/packages.txt

FROM ${BASE:-nvidia/cuda:13.0.1-base-ubuntu24.04}
# CUDA's runtime library is linked in: the base flavour has the rest.
COPY --from=build /out/packages.txt /usr/share/flashbob/packages.txt
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive xargs apt-get install -y -qq --no-install-recommends </usr/share/flashbob/packages.txt \
    >/dev/null && apt-get clean && rm -rf /var/lib/apt/lists/* && \
    groupadd --system --gid 10001 flashbob && \
    useradd --system --uid 10001 --gid 10001 --home-dir /nonexistent --no-create-home --shell /usr/sbin/nologin flashbob
COPY LICENSE /usr/share/doc/flashbob/LICENSE
COPY --from=build /out/bin/ /usr/local/bin/

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="FlashBoB Server" \
      org.opencontainers.image.description="Exact derivatives of softmax attention, first and second order, over gRPC" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# By number, so that Kubernetes can see that it is not root.
USER 10001:10001
# gRPC, metrics.
EXPOSE 50051 9464
# The server writes no file unless told to, so the root may be read-only. It drains within 30 s of SIGTERM: stop it with
# more time than that (docker stop --time 35).
STOPSIGNAL SIGTERM
# The server named by FLASHBOB_SERVER, else 127.0.0.1:50051.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["flashbob", "health", "--timeout", "4"]
ENTRYPOINT ["flashbob-server"]
# Clear text to whoever reaches the published port: the log warns. TLS and tenants: deploy/README.md.
CMD ["--listen", "0.0.0.0:50051", "--metrics-listen", "0.0.0.0:9464", "--allow-insecure"]
