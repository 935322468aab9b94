#!/usr/bin/env bash
# Checks what ctest cannot: that Kubernetes' manifests render, the compose files parse, Prometheus takes its
# configuration, systemd its unit; then builds the CPU image and runs it (image_test.sh). Installs what is missing.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top"
tools=(docker-compose python3-yaml systemd)
# Debian has kubectl in this package; Ubuntu has it in none: install it there by hand.
command -v kubectl >/dev/null || tools+=(kubernetes-client)
deploy/install_dependencies.sh "${tools[@]}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

kubectl kustomize deploy/kubernetes >"$scratch/rendered.yaml"
/usr/bin/python3 tests/deploy/check_rendered.py "$scratch/rendered.yaml"
docker-compose -f deploy/compose.yaml config --quiet
docker-compose -f deploy/compose.yaml -f deploy/compose.gpu.yaml config --quiet
echo "deploy: the compose files parse"
# Under the paths that it has in the container.
mkdir "$scratch/prometheus"
cp deploy/prometheus/*.yml "$scratch/prometheus"
sed "s|/etc/prometheus/flashbob|$scratch/prometheus|" deploy/compose/prometheus.yml >"$scratch/prometheus.yml"
tests/deploy/get_prometheus.sh "$top/build/prometheus"
build/prometheus/promtool check config "$scratch/prometheus.yml"
# Verified as if installed: with a program in ExecStart's place.
sed "s|^ExecStart=/usr/local/bin/flashbob-server|ExecStart=/bin/true|" deploy/systemd/flashbob-server.service \
  >"$scratch/flashbob-server.service"
complaints=$(SYSTEMD_LOG_LEVEL=warning systemd-analyze verify "$scratch/flashbob-server.service" 2>&1 |
  grep flashbob-server || true)
[ -z "$complaints" ] || { echo "deploy: systemd says: $complaints" >&2; exit 1; }
echo "deploy: systemd takes the unit"

tests/deploy/image_test.sh
