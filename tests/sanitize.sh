#!/usr/bin/env bash
# Builds and tests the host code with clang's sanitizers:
#   tests/sanitize.sh build     everything with AddressSanitizer and UndefinedBehaviorSanitizer, into build/asan, the fuzz
#                               targets with it; also the build that shows clang's warnings
#   tests/sanitize.sh address   builds and runs the tests there
#   tests/sanitize.sh thread    builds and runs the suites without gRPC with ThreadSanitizer, in build/tsan
#   tests/sanitize.sh           both
# The distributions' libraries are not instrumented: what they do with memory of their own is not seen. Nothing is
# suppressed.
set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top"
jobs=${FLASHBOB_BUILD_JOBS:-$(nproc)}

# ThreadSanitizer does not know every layout of memory that kernels choose; where a container forbids to say which, it
# runs as it can.
same_addresses=()
if setarch -R true 2>/dev/null; then same_addresses=(setarch -R); fi

# configure TREE FLAGS [OPTION...]
configure() {
  local tree=$1 flags=$2
  shift 2
  mkdir -p build
  cmake -S . -B "build/$tree" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DFLASHBOB_CUDA=OFF \
    -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O1 -gline-tables-only -fno-omit-frame-pointer $flags" "$@" \
    >"build/$tree.log" 2>&1 || { cat "build/$tree.log" >&2; exit 1; }
}

# compile TREE [TARGET...]
compile() {
  local tree=$1
  shift
  "${same_addresses[@]}" cmake --build "build/$tree" -j "$jobs" ${1:+--target "$@"} >"build/$tree.log" 2>&1 ||
    { tail -n 100 "build/$tree.log" >&2; exit 1; }
}

build_address() {
  configure asan "-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all" -DFLASHBOB_FUZZ=ON
  compile asan
}

# Left out: tests of scripts and of other people's programs; tests that judge memory or shares of time, which sanitizers
# change; and the long lists, of which each build also runs the short ones.
left_out='^(get_prometheus|monitoring_test|names_test|promises_test|client_install_test|buf_curl_test)$'
left_out+='|^PeakMemory\.|MemoryIsFlat|LittleMoreMemory|^FairShareTest\.|^FairQueueSimulation|^PromptReleaseTest\.'
left_out+='|FullCasesKeepTheirBars'

# Allocations that no memory can hold answer null, as they do without sanitizers: tests ask for some.
test_address() {
  build_address
  ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
    ctest --test-dir build/asan --output-on-failure --timeout 300 -j "$jobs" -E "$left_out" \
    >build/asan-ctest.log 2>&1 || { tail -n 200 build/asan-ctest.log >&2; exit 1; }
  echo "sanitize: address, undefined: $(grep 'tests passed' build/asan-ctest.log)"
}

# The suites without gRPC.
thread_suites=(
  admission_test fair_queue_test fair_scheduler_test host_memory_pool_test device_memory_pool_test tensor_store_test
  tenant_test thread_pool_test cpu_engine_test)

test_thread() {
  configure tsan "-fsanitize=thread"
  compile tsan "${thread_suites[@]}"
  local suite failed=0
  for suite in "${thread_suites[@]}"; do
    TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" \
      "${same_addresses[@]}" "build/tsan/$suite" >"build/tsan-$suite.log" 2>&1 ||
      { tail -n 100 "build/tsan-$suite.log" >&2; echo "sanitize: thread: $suite FAILED" >&2; failed=1; }
  done
  [ $failed -eq 0 ] || exit 1
  echo "sanitize: thread: ${#thread_suites[@]} suites passed"
}

deploy/install_dependencies.sh clang libclang-rt-dev llvm
case "${1:-all}" in
  build) build_address ;;
  address) test_address ;;
  thread) test_thread ;;
  all)
    test_address
    test_thread
    ;;
  *) echo "usage: sanitize.sh [build|address|thread]" >&2; exit 2 ;;
esac
