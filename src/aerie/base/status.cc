#include "aerie/base/status.h"

#include <cerrno>
#include <cstring>
#include <system_error>

namespace aerie {

namespace {
const std::string kEmpty;
const std::vector<std::string> kNoContext;
}  // namespace

void throw_internal_error(const char* file, int line, const char* condition,
                          const std::string& text) {
  std::string where(file);
  if (const size_t at = where.rfind("src/"); at != std::string::npos) where = where.substr(at);
  throw InternalError(
      str_cat(where, ":", line, ": check failed: ", condition, text.empty() ? "" : ": ", text));
}

const char* status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kDataError:
      return "data error";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kIoError:
      return "I/O error";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kOutOfMemory:
      return "out of memory";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

int exit_code_for(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return 0;
    case StatusCode::kInvalidArgument:
    case StatusCode::kUnsupported:
      return 2;
    case StatusCode::kDataError:
      return 3;
    default:
      return 1;
  }
}

Status::Status(StatusCode code, std::string message) {
  AERIE_CHECK(code != StatusCode::kOk, "an error Status needs an error code");
  rep_ = std::make_shared<const Rep>(Rep{code, std::move(message), {}, {}});
}

const std::string& Status::message() const {
  return rep_ ? rep_->message : kEmpty;
}

const std::string& Status::hint() const {
  return rep_ ? rep_->hint : kEmpty;
}

const std::vector<std::string>& Status::context() const {
  return rep_ ? rep_->context : kNoContext;
}

Status Status::with_context(std::string where) const& {
  if (ok()) return *this;
  auto rep = std::make_shared<Rep>(*rep_);
  rep->context.push_back(std::move(where));
  Status out;
  out.rep_ = std::move(rep);
  return out;
}

Status Status::with_context(std::string where) && {
  return static_cast<const Status&>(*this).with_context(std::move(where));
}

Status Status::with_hint(std::string hint) const& {
  if (ok() || !rep_->hint.empty()) return *this;
  auto rep = std::make_shared<Rep>(*rep_);
  rep->hint = std::move(hint);
  Status out;
  out.rep_ = std::move(rep);
  return out;
}

Status Status::with_hint(std::string hint) && {
  return static_cast<const Status&>(*this).with_hint(std::move(hint));
}

std::string Status::to_string() const {
  if (ok()) return "ok";
  std::string out;
  for (auto it = rep_->context.rbegin(); it != rep_->context.rend(); ++it) out += *it + ": ";
  out += rep_->message;
  if (!rep_->hint.empty()) out += str_cat(" (", rep_->hint, ")");
  return out;
}

Status invalid_argument(std::string message) {
  return Status(StatusCode::kInvalidArgument, std::move(message));
}
Status data_error(std::string message) {
  return Status(StatusCode::kDataError, std::move(message));
}
Status not_found(std::string message) {
  return Status(StatusCode::kNotFound, std::move(message));
}
Status io_error(std::string message) {
  return Status(StatusCode::kIoError, std::move(message));
}
Status errno_error(std::string what, int error_number) {
  const auto code = [error_number] {
    switch (error_number) {
      case ENOENT:
        return StatusCode::kNotFound;
      case ENOMEM:
        return StatusCode::kOutOfMemory;
      // Nothing is wrong with the file: the same call may succeed a moment later.
      case EINTR:
      case EAGAIN:
      case EMFILE:
      case ENFILE:
      case ESTALE:
      case ETIMEDOUT:
        return StatusCode::kUnavailable;
      default:
        return StatusCode::kIoError;
    }
  }();
  return Status(code, str_cat(what, ": ", std::generic_category().message(error_number)));
}
Status unsupported(std::string message) {
  return Status(StatusCode::kUnsupported, std::move(message));
}
Status out_of_memory(std::string message) {
  return Status(StatusCode::kOutOfMemory, std::move(message));
}
Status cancelled(std::string message) {
  return Status(StatusCode::kCancelled, std::move(message));
}
Status unavailable(std::string message) {
  return Status(StatusCode::kUnavailable, std::move(message));
}
Status internal_error(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

}  // namespace aerie
