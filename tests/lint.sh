#!/usr/bin/env bash
# Checks that need no run: buf lint, clang-format, ruff, shell syntax, and clang's thread-safety analysis of every C++
# source. The linters' versions are pinned in tests/lint_requirements.txt, so that everybody gets the same answer.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"

deploy/install_dependencies.sh
venv=build/lint-venv
mkdir -p build
[ -x $venv/bin/buf ] || { python3 -m venv $venv && $venv/bin/pip install -q -r tests/lint_requirements.txt; }

echo "lint: buf"
(cd proto && "$top/$venv/bin/buf" lint)

echo "lint: clang-format"
git ls-files '*.cc' '*.h' '*.cu' '*.cuh' | xargs $venv/bin/clang-format --dry-run --Werror

echo "lint: ruff"
$venv/bin/ruff check --quiet .
$venv/bin/ruff format --check --quiet .

echo "lint: shell syntax"
git ls-files '*.sh' .ci/run | xargs -n 1 bash -n

echo "lint: clang's warnings and thread-safety analysis, as errors, in the build with its sanitizers"
tests/sanitize.sh build

echo "lint: clean"
