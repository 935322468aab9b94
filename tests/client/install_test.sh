#!/usr/bin/env bash
# Installs the build under a prefix of its own and builds the C++ example of README.md against it, as a stranger would.
#   install_test.sh SOURCE_DIR BUILD_DIR CMAKE CXX_COMPILER
set -euo pipefail

source_dir=$1
build_dir=$2
cmake=$3
compiler=$4
example=$source_dir/client/cpp/example.cc

fail() { echo "install_test: $*" >&2; exit 1; }

[[ $(<"$source_dir/README.md") == *"$(<"$example")"* ]] || fail "README.md does not hold $example as it is"

scratch=$(mktemp -d)
server=
cleanup() {
  [ -z "$server" ] || kill "$server"
  rm -rf "$scratch"
}
trap cleanup EXIT
"$cmake" --install "$build_dir" --prefix "$scratch/prefix"
"$cmake" -S "$source_dir/tests/client/consumer" -B "$scratch/build" -G Ninja \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_COMPILER="$compiler" -DEXAMPLE="$example"
"$cmake" --build "$scratch/build"

# Nobody listens on port 1: the example must say so, by the library's error.
output=$("$scratch/build/example" 127.0.0.1:1 2>&1) && fail "the example succeeded without a server: $output"
[[ $output == *UNAVAILABLE*127.0.0.1:1* ]] || fail "unexpected output: $output"

"$build_dir/flashbob-server" --listen 127.0.0.1:0 --metrics-listen off --port-file "$scratch/port" &
server=$!
for _ in $(seq 300); do
  [ -s "$scratch/port" ] && break
  sleep 0.1
done
[ -s "$scratch/port" ] || fail "the server did not start"
output=$("$scratch/build/example" "127.0.0.1:$(<"$scratch/port")") || fail "the example failed: $output"
[[ $output == "gq has 8192 elements" ]] || fail "unexpected output: $output"
