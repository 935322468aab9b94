#!/usr/bin/env bash
# What the Python package must show on a machine with a GPU: gpu.sh PROGRAMS OUT
#
# PROGRAMS has flashbob-server and flashbob, as build/ or bin/ of a bundle (deploy/bundle.sh) has; python3 needs grpcio,
# hypothesis, jax, protobuf, pytest and torch. Into OUT go suite.txt (the package's tests against a server on the GPU),
# long_context.jsonl (double backward at N = 65,536 from a torch program, against fp64) and bench.json. About two minutes.
#
# FLASHBOB_GPU names the server's device (default cuda:0); cpu tries the script itself, with FLASHBOB_GPU_ROWS=1024.
set -euo pipefail

[ $# -eq 2 ] || { echo "usage: gpu.sh PROGRAMS OUT" >&2; exit 2; }
programs=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
client=$(cd "$here/../../../client/python" && pwd)
device=${FLASHBOB_GPU:-cuda:0}
rows=${FLASHBOB_GPU_ROWS:-65536}

export PYTHONPATH=$client/src PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 FLASHBOB_SERVER_BINARY=$programs/flashbob-server
# JAX would take three quarters of the GPU's memory for itself.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
failed=0

note() { echo "gpu.sh: $1 $(date +%T)"; }

note "the suite, against a server on $device"
workers=()
if python3 -c 'import xdist' 2>/dev/null; then workers=(-n 10 --dist load); fi
(cd "$here" && FLASHBOB_TEST_SERVER_ARGUMENTS="--devices $device --device-memory-bytes 8GiB --host-memory-bytes 6GiB" \
  timeout 400 python3 -m pytest -q -p no:cacheprovider -o faulthandler_timeout=120 --durations=10 "${workers[@]}" \
  >"$out/suite.txt" 2>&1) || failed=1
tail -n 1 "$out/suite.txt"

note "double backward at N = $rows from torch"
rm -f "$out/port"
"$programs/flashbob-server" --listen 127.0.0.1:0 --metrics-listen off --devices "$device" --port-file "$out/port" \
  2>"$out/server.txt" &
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
until [ -s "$out/port" ]; do kill -0 $server || exit 1; sleep 0.1; done
export FLASHBOB_SERVER=127.0.0.1:$(cat "$out/port")
tensors=${device%%:*}
: >"$out/long_context.jsonl"
for arguments in "--dtype bfloat16" "--dtype float16" "--dtype float32" "--dtype bfloat16 --heads 8"; do
  # shellcheck disable=SC2086
  timeout 120 python3 "$client/examples/long_context.py" --json --exact --rows "$rows" --device "$tensors" $arguments \
    >>"$out/long_context.jsonl" || failed=1
done
kill $server
wait $server || failed=1
cat "$out/long_context.jsonl"

note "beside the C++ client"
timeout 120 python3 "$here/bench.py" --bin "$programs" --seconds 1 | tee "$out/bench.json" || failed=1
note "done, failed=$failed"
exit $failed
