#!/usr/bin/env bash
# Tests the Python package against build/flashbob-server, which must be built: run.sh PACKAGES [PYTEST ARGUMENTS...].
# FLASHBOB_SERVER_BINARY names another server's program.
#
#   distribution  python3-grpcio, python3-protobuf, python3-numpy and, where the distribution has it, python3-torch;
#                 installs what is missing (Debian 12: 150 MB). Part of tests/run.sh.
#   pypi          current grpcio, protobuf, numpy, torch and jax, in build/python-venv, made here where it is missing
#                 or old (6 GB: PyPI's torch for Linux brings CUDA's libraries and does not load without them); also
#                 the wheel and mypy --strict. Part of .ci/run.
#
# Which test needs what stands in conftest.py; the first lines of a run say what is left out. The last line has counts.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../../.." && pwd)
packages=${1:-}
shift || true

export FLASHBOB_SERVER_BINARY=${FLASHBOB_SERVER_BINARY:-$top/build/flashbob-server}
[ -x "$FLASHBOB_SERVER_BINARY" ] || { echo "run.sh: $FLASHBOB_SERVER_BINARY is not built" >&2; exit 1; }
# Compiling torch's and jax's sources anew in each process would take most of the time.
unset PYTHONDONTWRITEBYTECODE

# Runs the tests on the given interpreter. A test that hangs is shown with its threads after ten minutes, and ends the
# run after forty.
run_tests() {
  local python=$1 log=$top/build/python-$packages.log
  shift
  (cd "$here" && timeout -k 30 2400 "$python" -m pytest -p no:cacheprovider -o console_output_style=count \
    -o faulthandler_timeout=600 --durations=5 "$@") | tee "$log"
  echo "run.sh: Python package, packages of $packages: $(tail -n 1 "$log" | sed "s/^=* *//; s/ *=*$//")"
}

case $packages in
  distribution)
    wanted=(python3-grpcio python3-hypothesis python3-numpy python3-protobuf python3-pytest)
    # Debian has it; elsewhere only where the package lists do.
    if grep -q '^ID=debian' /etc/os-release || apt-cache show python3-torch >/dev/null 2>&1; then
      wanted+=(python3-torch)
    fi
    "$top/deploy/install_dependencies.sh" "${wanted[@]}"
    PYTHONPATH=$top/client/python/src run_tests /usr/bin/python3 "$@"
    ;;
  pypi)
    venv=$top/build/python-venv
    hash=$(sha256sum <"$here/requirements.txt")
    if [ "$(cat "$venv/requirements.sha256" 2>/dev/null)" != "$hash" ]; then
      echo "run.sh: installing tests/client/python/requirements.txt into build/python-venv"
      python3 -m venv --clear "$venv"
      "$venv/bin/pip" install -q --no-cache-dir --no-compile --disable-pip-version-check --retries 10 --timeout 60 \
        -r "$here/requirements.txt"
      printf '%s\n' "$hash" >"$venv/requirements.sha256"
    fi
    echo "run.sh: the package's wheel builds and installs"
    rm -rf "$top/build/python-wheel" "$top/client/python/build"
    "$venv/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$top/build/python-wheel" "$top/client/python"
    "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$top"/build/python-wheel/*.whl
    echo "run.sh: mypy --strict"
    (cd "$top/client/python" && "$venv/bin/mypy" --cache-dir "$top/build/mypy-cache")
    run_tests "$venv/bin/python" "$@"
    ;;
  *)
    echo "run.sh: '$packages' is neither distribution nor pypi" >&2
    exit 2
    ;;
esac
