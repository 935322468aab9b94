#!/usr/bin/env bash
# Tests the Python package: run.sh [PYTEST ARGUMENTS...].
#
# Twice: with current grpcio, torch and jax from PyPI, in build/python-venv, made here where it is missing (5 GB, about
# two minutes: PyPI's torch for Linux brings CUDA's libraries with it, and does not load without them); then with the
# distribution's python3-grpcio, python3-protobuf and python3-numpy, where tests that need torch run only if
# python3-torch is there, and those that need jax or a newer torch skip.
# Against build/flashbob-server, which must be built before. FLASHBOB_SERVER_BINARY names another.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$here/../../.." && pwd)
venv=$top/build/python-venv
wanted=$(sha256sum <"$here/requirements.txt")

export FLASHBOB_SERVER_BINARY=${FLASHBOB_SERVER_BINARY:-$top/build/flashbob-server}
[ -x "$FLASHBOB_SERVER_BINARY" ] || { echo "run.sh: $FLASHBOB_SERVER_BINARY is not built" >&2; exit 1; }

if [ "$(cat "$venv/requirements.sha256" 2>/dev/null)" != "$wanted" ]; then
  echo "run.sh: installing tests/client/python/requirements.txt into build/python-venv"
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install -q --no-cache-dir --no-compile --disable-pip-version-check -r "$here/requirements.txt"
  printf '%s\n' "$wanted" >"$venv/requirements.sha256"
fi

echo "run.sh: the package's wheel builds and installs"
rm -rf "$top/build/python-wheel" "$top/client/python/build"
"$venv/bin/pip" wheel -q --disable-pip-version-check --no-deps -w "$top/build/python-wheel" "$top/client/python"
"$venv/bin/pip" install -q --disable-pip-version-check --no-deps --force-reinstall "$top"/build/python-wheel/*.whl

echo "run.sh: mypy --strict"
(cd "$top/client/python" && "$venv/bin/mypy" --cache-dir "$top/build/mypy-cache")

cd "$here"
export PYTHONDONTWRITEBYTECODE=1
echo "run.sh: tests with PyPI's current packages"
"$venv/bin/python" -m pytest -q -p no:cacheprovider "$@"

if [ -x /usr/bin/apt-get ]; then
  "$top/deploy/install_dependencies.sh" python3-grpcio python3-hypothesis python3-numpy python3-protobuf python3-pytest
  echo "run.sh: tests with the distribution's packages"
  # Exit code 5: the arguments chose tests that only run with PyPI's packages. What takes long, once is enough.
  PYTHONPATH="$top/client/python/src" /usr/bin/python3 -m pytest -q -p no:cacheprovider \
    --deselect test_torch_residuals.py::test_thousand_training_steps_leave_nothing_behind "$@" || [ $? -eq 5 ]
fi
