#include "client/cli/problem_flags.h"

#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace flashbob::cli {
namespace {

CLI::IsMember Corner() { return CLI::IsMember({"top-left", "bottom-right"}); }

// A side of --window: a whole number that is at least -1.
std::optional<int64_t> ParseSide(std::string_view text) {
  int64_t side = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), side);
  if (error != std::errc() || end != text.data() + text.size() || side < -1) return std::nullopt;
  return side;
}

absl::Status SetWindow(const std::string& text, ProblemOptions& options) {
  const size_t comma = text.find(',');
  const std::string_view view = text;
  const auto left = ParseSide(view.substr(0, comma));
  const auto right = comma == std::string::npos ? std::nullopt : ParseSide(view.substr(comma + 1));
  if (!left.has_value() || !right.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--window ", text, " is not LEFT,RIGHT, each 0 or more or -1"));
  }
  options.window_left = *left;
  options.window_right = *right;
  return absl::OkStatus();
}

}  // namespace

void AddProblemFlags(CLI::App& command, ProblemFlags& flags) {
  command.add_option("--layout", flags.layout, "Order of the axes: BHND, BNHD or THD (packed) [BHND]")
      ->check(CLI::IsMember({"BHND", "BNHD", "THD"}))
      ->type_name("LAYOUT");
  command
      .add_option("--causal", flags.causal,
                  "No key right of the diagonal, which starts at this corner: top-left or bottom-right. Sets the right "
                  "side of the window to 0 whatever --window says")
      ->check(Corner())
      ->type_name("CORNER");
  command
      .add_option("--window", flags.window,
                  "Keys that a query sees on either side of the diagonal; -1 leaves a side open [-1,-1]")
      ->type_name("LEFT,RIGHT");
  command.add_option("--align", flags.align, "Corner where the diagonal starts: top-left or bottom-right [top-left]")
      ->check(Corner())
      ->type_name("CORNER");
  command.add_option("--scale", flags.scale, "Scale of the softmax [1 / sqrt(head dim)]")->type_name("X");
  command
      .add_option(
          "--probes", flags.probes,
          "P >= 1: cotangents and tangents, and what comes of them, lead with an axis of P. 0: no such axis [0]")
      ->type_name("P");
  command.add_flag("--tf32", flags.tf32, "Permit fp32 factors to be rounded to TF32");
  command.add_flag("--deterministic", flags.deterministic, "The same bits from run to run");
}

absl::StatusOr<ProblemOptions> ToProblemOptions(const ProblemFlags& flags) {
  ProblemOptions options;
  options.layout = ParseLayout(flags.layout).value_or(Layout::kBHND);
  if (flags.window.has_value()) FLASHBOB_RETURN_IF_ERROR(SetWindow(*flags.window, options));
  if (flags.causal.has_value()) {
    if (flags.align.has_value() && *flags.align != *flags.causal) {
      return absl::InvalidArgumentError(
          absl::StrCat("--align ", *flags.align, " contradicts --causal ", *flags.causal));
    }
    options.window_right = 0;
  }
  const std::optional<std::string>& corner = flags.causal.has_value() ? flags.causal : flags.align;
  if (corner.has_value()) options.alignment = ParseAlignment(*corner).value_or(Alignment::kTopLeft);
  if (flags.scale.has_value() && !std::isfinite(*flags.scale)) {
    return absl::InvalidArgumentError(absl::StrCat("--scale is ", *flags.scale, "; it must be finite"));
  }
  if (flags.probes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--probes is ", flags.probes, "; it must be 0 or more"));
  }
  options.scale = flags.scale;
  options.probes = flags.probes;
  options.allow_tf32 = flags.tf32;
  options.deterministic = flags.deterministic;
  return options;
}

}  // namespace flashbob::cli
