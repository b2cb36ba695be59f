// Status and Result<T>: how everything that touches the outside world (files, archives, audio,
// configuration, devices) reports failure. A Status answers three questions: what failed, on which
// input (the context chain), and what to try (the hint).
//
//   Result<Manifest> open(const std::string& path) {
//     AERIE_ASSIGN_OR_RETURN(auto bytes, env.read_file(path));
//     ...
//     return data_error(str_cat("line ", line, " is not JSON")).with_context(path).with_hint("set
//     skip_bad_lines");
//   }
//
// Programmer mistakes are not Status: they go through AERIE_CHECK (check.h) and throw
// InternalError.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "aerie/base/check.h"

namespace aerie {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // command line or configuration is wrong           -> exit code 2
  kDataError,        // manifest, audio, archive or checkpoint is wrong  -> exit code 3
  kNotFound,         // a named thing does not exist
  kIoError,          // the operating system refused (disk full, permission, ...)
  kUnsupported,      // understood, and refused with a reason
  kOutOfMemory,
  kCancelled,    // stopped on request (shutdown, signal)
  kUnavailable,  // not now: try again later or elsewhere (no GPU, queue closed)
  kInternal,     // a bug of ours
};

// "invalid argument", "data error", ...
const char* status_code_name(StatusCode code);

// Process exit code: 0 done, 1 the run failed, 2 command line or config wrong, 3 data wrong.
int exit_code_for(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok; costs one null pointer
  Status(StatusCode code, std::string message);

  bool ok() const { return rep_ == nullptr; }
  StatusCode code() const { return rep_ ? rep_->code : StatusCode::kOk; }
  const std::string& message() const;
  const std::string& hint() const;
  const std::vector<std::string>& context() const;  // innermost first

  // Where it happened, added while returning: "train.json:17", then "manifest 2 of 3".
  Status with_context(std::string where) &&;
  Status with_context(std::string where) const&;
  // What to try; the innermost hint is kept.
  Status with_hint(std::string hint) &&;
  Status with_hint(std::string hint) const&;

  // "outer: inner: message (hint)"; one line unless the message itself has several.
  std::string to_string() const;

 private:
  struct Rep {
    StatusCode code;
    std::string message;
    std::string hint;
    std::vector<std::string> context;
  };
  std::shared_ptr<const Rep> rep_;
};

inline Status ok_status() {
  return Status();
}
Status invalid_argument(std::string message);
Status data_error(std::string message);
Status not_found(std::string message);
Status io_error(std::string message);
// errno as text: "cannot open x: No such file or directory". ENOENT gives kNotFound.
Status errno_error(std::string what, int error_number);
Status unsupported(std::string message);
Status out_of_memory(std::string message);
Status cancelled(std::string message);
Status unavailable(std::string message);
Status internal_error(std::string message);

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value)
      : state_(std::in_place_index<0>, std::move(value)) {}  // NOLINT: implicit by design
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT
    AERIE_CHECK(!std::get<1>(state_).ok(), "Result made from an ok Status");
  }

  bool ok() const { return state_.index() == 0; }
  Status status() const { return ok() ? Status() : std::get<1>(state_); }

  T& value() & {
    AERIE_CHECK(ok(), "Result::value() on an error: ", std::get<1>(state_).to_string());
    return std::get<0>(state_);
  }
  const T& value() const& {
    AERIE_CHECK(ok(), "Result::value() on an error: ", std::get<1>(state_).to_string());
    return std::get<0>(state_);
  }
  // By value: a loop over a member of a temporary must not dangle.
  T value() && {
    AERIE_CHECK(ok(), "Result::value() on an error: ", std::get<1>(state_).to_string());
    return std::move(std::get<0>(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // The error with one more context; the value unchanged.
  Result<T> with_context(std::string where) && {
    if (ok()) return std::move(*this);
    return std::get<1>(std::move(state_)).with_context(std::move(where));
  }

 private:
  std::variant<T, Status> state_;
};

}  // namespace aerie

#define AERIE_CONCAT_INNER(a, b) a##b
#define AERIE_CONCAT(a, b) AERIE_CONCAT_INNER(a, b)

#define AERIE_RETURN_IF_ERROR(expression)                                          \
  do {                                                                             \
    if (auto aerie_status = (expression); !aerie_status.ok()) return aerie_status; \
  } while (false)

#define AERIE_ASSIGN_OR_RETURN(lhs, expression) \
  AERIE_ASSIGN_OR_RETURN_INNER(AERIE_CONCAT(aerie_result_, __LINE__), lhs, expression)
#define AERIE_ASSIGN_OR_RETURN_INNER(result, lhs, expression) \
  auto result = (expression);                                 \
  if (!result.ok()) return result.status();                   \
  lhs = std::move(result).value()
