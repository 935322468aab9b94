// The devices of flashbob-faulty-server, which besides is the real program: a CPU engine whose memory is apart and that
// fails or hangs at the step that FLASHBOB_TEST_FAULT names:
//   hold STEP [AFTER]   AFTER more calls of the step pass, the later ones hang; the log then says "held STEP"
//   lose STEP [AFTER]   AFTER more go well, the next one and all after it fail
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "kernels/cpu/cpu_engine.h"
#include "kernels/devices/devices.h"
#include "tests/server/testing/faulty_engine.h"

namespace flashbob {

MachineDevices FindDevices() { return {.gpus = {}, .why_no_gpus = "the devices of a test"}; }

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const std::string& /*device*/, int cpu_threads) {
  auto engine =
      std::make_unique<server::FaultyEngine>(cpu::CreateCpuEngine({.threads = cpu_threads, .slice_flops = 1e6}));
  const char* const fault = std::getenv("FLASHBOB_TEST_FAULT");
  std::istringstream words(fault == nullptr ? "" : fault);
  std::string what;
  std::string step_name;
  int64_t after = 0;
  if (!(words >> what >> step_name)) return engine;
  words >> after;
  const std::optional<server::FaultyEngine::Step> step = server::FaultyEngine::StepOf(step_name);
  if (!step.has_value()) return absl::InvalidArgumentError("FLASHBOB_TEST_FAULT names no step: " + step_name);
  if (what == "lose") {
    engine->Lose(*step, absl::UnavailableError("an illegal memory access"), after);
  } else {
    engine->OnHeld(
        [](server::FaultyEngine::Step held) { std::fprintf(stderr, "held %s\n", server::FaultyEngine::Name(held)); });
    engine->Hold(*step, after);
  }
  return engine;
}

}  // namespace flashbob
