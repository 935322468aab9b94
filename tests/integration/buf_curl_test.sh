#!/usr/bin/env bash
# Calls the server as somebody would who has nothing but its address: buf_curl_test.sh SERVER BUILD_FOLDER. `buf curl`
# learns the service through reflection.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
server=$1
venv=$2/lint-venv
[ -x "$venv/bin/buf" ] || { python3 -m venv "$venv" && "$venv/bin/pip" install -q -r "$top/tests/lint_requirements.txt"; }

scratch=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill "$pid"; rm -rf "$scratch"' EXIT
"$server" --listen 127.0.0.1:0 --metrics-listen off --port-file "$scratch/port" 2>"$scratch/log" &
pid=$!
for _ in $(seq 300); do [ -s "$scratch/port" ] && break; sleep 0.1; done
url=http://127.0.0.1:$(cat "$scratch/port")

curl() { "$venv/bin/buf" curl --protocol grpc --http2-prior-knowledge "$@"; }
expect() {
  grep -q -- "$1" "$scratch/out" || { echo "no '$1' in:" && cat "$scratch/out" "$scratch/log" && exit 1; } >&2
}

curl --list-methods "$url" >"$scratch/out"
for method in Compute PutTensors GetTensors DeleteTensors GetServerInfo; do
  expect "flashbob.v1.AttentionService/$method"
done

curl -d '{}' "$url/flashbob.v1.AttentionService/GetServerInfo" >"$scratch/out"
expect '"name": "cpu"'

# FORWARD of one query on one key: o is v, here 1 and 2.
tensor() {
  printf '{"tensor": {"name": "TENSOR_NAME_%s", "dtype": "DATA_TYPE_FP32", "shape": [1, 1, 1, 2]}, "inline": {}}' "$1"
}
chunk() { printf '{"chunk": {"tensor_index": %s, "data": "%s"}}' "$1" "$2"; }
printf '{"spec": {"operation": "OPERATION_FORWARD", "problem": {"layout": "LAYOUT_BHND"}, "inputs": [%s, %s, %s]}} %s %s %s' \
  "$(tensor Q)" "$(tensor K)" "$(tensor V)" \
  "$(chunk 0 AAAAAAAAAAA=)" "$(chunk 1 AAAAAAAAAAA=)" "$(chunk 2 AACAPwAAAEA=)" >"$scratch/in"
curl -d "@$scratch/in" "$url/flashbob.v1.AttentionService/Compute" >"$scratch/out"
expect '"data": "AACAPwAAAEA="'

# Errors come with their reason, also to a client that has never heard of it.
if curl -d '{"handles": ["nothing"]}' "$url/flashbob.v1.AttentionService/GetTensors" >"$scratch/out" 2>&1; then
  echo "a handle that nobody gave out was served" >&2
  exit 1
fi
expect not_found
expect google.rpc.ErrorInfo
expect "$(printf '\n\6HANDLE' | base64 | tr -d =)"
echo "buf curl: listed, asked, computed, refused"
