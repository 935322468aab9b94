#!/usr/bin/env bash
# From a fresh machine to a computed backward-over-backward: installs what is missing, builds, starts a server on a free
# loopback port, runs double_backward on the attention layer of a real language model (tests/data) and `flashbob check`
# through it, prints the results and stops the server. Can be run again; leaves build/ and nothing running.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"

step() { printf '\n== %s\n' "$*"; }

step "Installing what is missing"
deploy/install_dependencies.sh

step "Building the server and the command-line client into build/"
deploy/build.sh flashbob flashbob-server

step "Starting a server on a free loopback port"
scratch=$(mktemp -d)
server_pid=
stop() {
  if [ -n "$server_pid" ] && kill -0 "$server_pid" 2>/dev/null; then
    kill -TERM "$server_pid"
    wait "$server_pid" || true
  fi
  rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT TERM

build/flashbob-server --listen 127.0.0.1:0 --metrics-listen 127.0.0.1:0 --port-file "$scratch/port" \
  2>"$scratch/server.log" &
server_pid=$!
for _ in $(seq 300); do
  [ -s "$scratch/port" ] && break
  kill -0 "$server_pid" 2>/dev/null || { cat "$scratch/server.log" >&2; echo "the server did not start" >&2; exit 1; }
  sleep 0.1
done
[ -s "$scratch/port" ] || { cat "$scratch/server.log" >&2; echo "no port after 30 s" >&2; exit 1; }
server="127.0.0.1:$(cat "$scratch/port")"
build/flashbob info --server "$server"

step "Backward over backward of a real attention layer: tests/data/real_input.safetensors"
build/flashbob run double_backward tests/data/real_input.safetensors -o build/quickstart_bob.safetensors \
  --server "$server"

step "Every operation, dtype and mask kind, computed by the server, against the fp64 reference"
build/flashbob check --server "$server"

step "Done: build/quickstart_bob.safetensors holds gq, gk, gv and gdo. The server is being stopped."
