#!/usr/bin/env bash
# Builds the CPU image from the Dockerfile and runs it: as a user without rights on a read-only root, in clear text as
# its CMD says, and under the configurations of compose.yaml and Kubernetes. Needs root: it starts a Docker daemon of its
# own, and installs Debian's where there is none. The base image is made by debootstrap: no image registry is asked.
# Layers and compiled objects are kept in FLASHBOB_IMAGE_CACHE [~/.cache/flashbob-image], so that the next run is quick.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$top"
[ "$(id -u)" -eq 0 ] || { echo "image_test: needs root, to run a Docker daemon" >&2; exit 1; }
deploy/install_dependencies.sh debootstrap docker.io

cache=${FLASHBOB_IMAGE_CACHE:-${HOME:-/root}/.cache/flashbob-image}
scratch=$(mktemp -d)
mkdir -p "$cache"
# The distribution's own client: a newer one on the PATH may lack BuildKit's plugin.
docker=/usr/bin/docker
export DOCKER_HOST=unix://$scratch/docker.sock DOCKER_BUILDKIT=1 DOCKER_CONFIG=$scratch
daemon=
cleanup() {
  if [ -n "$daemon" ]; then
    $docker ps --all --quiet | xargs -r $docker rm --force >/dev/null 2>&1 || true
    kill "$daemon" && wait "$daemon" || true
  fi
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 130' INT TERM
# Two runs at a time would share the cache.
exec 9>"$cache/lock"
flock 9

fail() { echo "image_test: $*" >&2; exit 1; }
passed=0
pass() { passed=$((passed + 1)); echo "image_test: $*"; }
# wait_until SECONDS WHAT COMMAND...
wait_until() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@"; do
    [ $SECONDS -lt "$end" ] || fail "$what"
    sleep 0.2
  done
}

# No bridge and no firewall rules: builds use the host's network, and what is tested has none but its own loopback.
/usr/sbin/dockerd --iptables=false --ip6tables=false --bridge=none --data-root "$cache/docker" \
  --exec-root "$scratch/exec" --pidfile "$scratch/pid" -H "$DOCKER_HOST" >"$scratch/daemon.log" 2>&1 9>&- &
daemon=$!
answers() {
  kill -0 "$daemon" 2>/dev/null || { tail -n 20 "$scratch/daemon.log" >&2; fail "the Docker daemon did not start"; }
  $docker version >/dev/null 2>&1
}
wait_until 60 "the Docker daemon does not answer" answers

# The stock base image's name, for what debootstrap makes of the distribution this runs on.
. /etc/os-release
base=$ID:$VERSION_CODENAME
if ! $docker image inspect "$base" >/dev/null 2>&1; then
  echo "image_test: making $base with debootstrap"
  debootstrap --variant=minbase "$VERSION_CODENAME" "$scratch/base" >"$scratch/debootstrap.log" 2>&1 ||
    { tail -n 20 "$scratch/debootstrap.log" >&2; fail "debootstrap failed"; }
  rm -rf "$scratch"/base/var/cache/apt/archives/*.deb "$scratch"/base/var/lib/apt/lists/*
  tar -C "$scratch/base" -c . | $docker import - "$base" >/dev/null
  rm -rf "$scratch/base"
fi

version=$(sed -n 's/^project(flashbob VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
revision=$(git rev-parse HEAD 2>/dev/null || echo unknown)
echo "image_test: building from $base"
SECONDS=0
$docker build --network host --progress plain --build-arg BASE="$base" --build-arg VERSION="$version" \
  --build-arg REVISION="$revision" -t flashbob:cpu . >"$scratch/build.log" 2>&1 ||
  { tail -n 60 "$scratch/build.log" >&2; fail "the image does not build"; }
of_base=$($docker image inspect -f '{{.Size}}' "$base")
size=$($docker image inspect -f '{{.Size}}' flashbob:cpu)
pass "built in $SECONDS s; $((size / 1000000)) MB, of which the base has $((of_base / 1000000)) MB"

label() { $docker image inspect -f "{{index .Config.Labels \"org.opencontainers.image.$1\"}}" flashbob:cpu; }
[ "$(label version)" = "$version" ] || fail "the label says version '$(label version)', CMakeLists.txt $version"
[ "$(label revision)" = "$revision" ] || fail "the label says revision '$(label revision)', git $revision"
pass "labels have version $version and the revision"

container=
# start NAME ARGUMENTS...: runs the image locked down, waits until Docker's health check says that it is healthy.
start() {
  container=$1
  shift
  $docker run --detach --name "$container" --network none --read-only --cap-drop ALL \
    --security-opt no-new-privileges "$@" >/dev/null
  wait_until 120 "$container is not healthy: $($docker logs "$container" 2>&1 | tail -n 20)" is_healthy
}
is_healthy() {
  [ "$($docker inspect -f '{{.State.Running}}' "$container")" = true ] ||
    { $docker logs "$container" >&2; fail "$container ended"; }
  [ "$($docker inspect -f '{{.State.Health.Status}}' "$container")" = healthy ]
}
inside() { $docker exec "$container" "$@"; }
stop() {
  $docker stop --time 60 "$container" >/dev/null
  local code
  code=$($docker inspect -f '{{.State.ExitCode}}' "$container")
  [ "$code" = 0 ] || { $docker logs "$container" >&2; fail "$container ended with exit code $code on SIGTERM"; }
}
logged() {
  local log
  log=$($docker logs "$container" 2>&1)
  [[ $log == *"$1"* ]] || fail "no '$1' in the log: $log"
}

start plain flashbob:cpu
pass "serves by its CMD, healthy by HEALTHCHECK"
logged 'chosen=cpu why='
pass "says that it computes on the CPU, and why"
logged 'clear text'
pass "warns of clear text"

uids=$(inside sed -n 's/^Uid:[[:space:]]*//p' /proc/1/status | tr '\t' ' ')
[ "$uids" = "10001 10001 10001 10001" ] || fail "the server's user ids are $uids"
for set in CapInh CapPrm CapEff CapBnd CapAmb; do
  [ "$(inside sed -n "s/^$set:[[:space:]]*//p" /proc/1/status)" = 0000000000000000 ] || fail "$set is not empty"
done
inside sh -c 'test ! -w / && test ! -w /usr/local/bin/flashbob-server && test ! -w /etc' ||
  fail "the server's user may write to the image"
pass "runs as user 10001, without capabilities"
# Even root cannot write: it is the file system that refuses.
for directory in / /etc /home /opt /root /run /tmp /usr/local/bin /var/lib /var/tmp; do
  answer=$($docker exec --user 0 "$container" touch "$directory/written" 2>&1) && fail "$directory can be written to"
  [[ $answer == *"Read-only file system"* ]] || fail "$directory: $answer"
done
pass "its root is read-only"
for tool in cc g++ cmake ninja protoc ccache git; do
  inside sh -c "command -v $tool" >/dev/null && fail "$tool is in the image"
done
pass "holds no tools to build with"
[[ $(inside flashbob-server --version) == *"$version"* ]] || fail "the server says it is $(inside flashbob-server --version)"
pid=$($docker inspect -f '{{.State.Pid}}' "$container")
[[ $(nsenter --target "$pid" --net curl --silent http://127.0.0.1:9464/metrics) == *flashbob_build_info{*version=\"$version\"* ]] ||
  fail "no flashbob_build_info of version $version on port 9464"
pass "exports its version on port 9464"
inside flashbob check || fail "flashbob check failed"
pass "flashbob check passes against it"
stop
pass "exits 0 on SIGTERM"

# Certificates as deploy/compose_up.sh makes them.
deploy/make_certificates.sh "$scratch/tls" flashbob >/dev/null
check_over_tls() {
  inside flashbob check --op forward --dtype fp32 "$@" --server localhost:50051 --tls-ca /etc/flashbob/tls/ca.pem \
    >/dev/null || fail "flashbob check over TLS failed"
  if inside flashbob info --server localhost:50051 --timeout 5 >/dev/null 2>&1; then fail "clear text is let in"; fi
}
run_dir=(--tmpfs /run/flashbob:mode=1777 --env FLASHBOB_SERVER=unix:/run/flashbob/flashbob.sock)
start compose "${run_dir[@]}" --volume "$top/deploy/compose/server.textproto:/etc/flashbob/server.textproto:ro" \
  --volume "$scratch/tls:/etc/flashbob/tls:ro" flashbob:cpu --config=/etc/flashbob/server.textproto
check_over_tls
stop
pass "serves over TLS with the configuration of compose.yaml"

# Kubernetes' names of a Secret's files; one tenant.
token=$(openssl rand -hex 16)
mkdir "$scratch/secret" "$scratch/tenants"
cp -p "$scratch/tls/ca.pem" "$scratch/secret/ca.pem"
cp -p "$scratch/tls/server.pem" "$scratch/secret/tls.crt"
cp -p "$scratch/tls/server.key" "$scratch/secret/tls.key"
hash=$(printf %s "$token" | sha256sum | cut -d' ' -f1)
printf 'tenants { name: "research" token_sha256: "%s" }\n' "$hash" >"$scratch/tenants/tenants.textproto"
start kubernetes "${run_dir[@]}" --volume "$top/deploy/kubernetes/server.textproto:/etc/flashbob/server.textproto:ro" \
  --volume "$scratch/secret:/etc/flashbob/tls:ro" --volume "$scratch/tenants:/etc/flashbob/tenants:ro" \
  flashbob:cpu --config=/etc/flashbob/server.textproto --server-name=flashbob-0
tls=(--server localhost:50051 --tls-ca /etc/flashbob/tls/ca.pem)
if inside flashbob info "${tls[@]}" >/dev/null 2>&1; then fail "who has no token is let in"; fi
$docker exec --env FLASHBOB_TOKEN="$token" "$container" flashbob check --op forward --dtype fp32 "${tls[@]}" >/dev/null ||
  fail "flashbob check with a token failed"
stop
pass "serves a tenant over TLS with the configuration of Kubernetes"

echo "image_test: $passed passed, 0 failed"
