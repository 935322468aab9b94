#!/usr/bin/env bash
# Makes src/flashbob/v1/*_pb2.py and .pyi from the contract. They are committed: code made by protoc 3.21 (Debian 12 and
# Ubuntu 24.04) runs with every protobuf from 3.20 on, the newest included, where code made by a newer protoc refuses
# the older ones; and an install then needs no compiler and no contract beside it. A test compares them with proto/.
# generate.sh [OUTPUT_DIRECTORY]
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:-$here/src}
case $(protoc --version) in
  "libprotoc 3.21."*) ;;
  *) echo "generate.sh: needs protoc 3.21, found $(protoc --version)" >&2; exit 1 ;;
esac
protoc -I "$here/../../proto" --python_out="$out" --pyi_out="$out" \
  flashbob/v1/{tensor,problem,error_details,attention_service}.proto
