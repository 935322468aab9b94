// Early return of an absl::Status that is not OK.
#ifndef FLASHBOB_KERNELS_BASE_STATUS_MACROS_H_
#define FLASHBOB_KERNELS_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define FLASHBOB_CONCAT_INNER(a, b) a##b
#define FLASHBOB_CONCAT(a, b) FLASHBOB_CONCAT_INNER(a, b)

// Returns the status of `expression` from the enclosing function unless it is OK.
#define FLASHBOB_RETURN_IF_ERROR(expression)           \
  do {                                                 \
    absl::Status flashbob_status = (expression);       \
    if (!flashbob_status.ok()) return flashbob_status; \
  } while (false)

// `FLASHBOB_ASSIGN_OR_RETURN(auto x, MakeX());` declares x from a StatusOr, or returns its status.
#define FLASHBOB_ASSIGN_OR_RETURN(declaration, expression) \
  FLASHBOB_ASSIGN_OR_RETURN_INNER(FLASHBOB_CONCAT(flashbob_status_or_, __LINE__), declaration, expression)
#define FLASHBOB_ASSIGN_OR_RETURN_INNER(temporary, declaration, expression) \
  auto temporary = (expression);                                            \
  if (!temporary.ok()) return std::move(temporary).status();                \
  declaration = *std::move(temporary)

#endif  // FLASHBOB_KERNELS_BASE_STATUS_MACROS_H_
