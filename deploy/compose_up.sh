#!/usr/bin/env bash
# Starts deploy/compose.yaml: makes certificates where there are none, gives the server the machine's GPUs where there
# are some, builds the image and waits until the server is healthy. Arguments go to `up`. Without GPUs the image is
# built from debian:bookworm-slim unless FLASHBOB_BASE says otherwise.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here"

./make_certificates.sh tls "$(hostname)"
FLASHBOB_USER=$(stat -c %u:%g tls/server.key)
files=(-f compose.yaml)
if nvidia-smi >/dev/null 2>&1; then
  files+=(-f compose.gpu.yaml)
else
  echo "compose_up: no GPU here: the server computes on the CPU"
  FLASHBOB_BASE=${FLASHBOB_BASE-debian:bookworm-slim}
fi
export FLASHBOB_USER FLASHBOB_BASE=${FLASHBOB_BASE-} DOCKER_BUILDKIT=1
docker compose "${files[@]}" up --build --detach --wait "$@"
