#include "peer_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"

namespace aerie::tools {

namespace {

constexpr size_t kMaxText = 4u << 20;
constexpr size_t kShownTail = 600;

std::string number(double value) {
  std::string text = str_cat(value);
  return text;
}

}  // namespace

std::string own_peer_script() {
  std::array<char, 4096> buffer;
  const ssize_t size = readlink("/proc/self/exe", buffer.data(), buffer.size());
  if (size <= 0 || size == static_cast<ssize_t>(buffer.size())) return "";
  std::string at(buffer.data(), static_cast<size_t>(size));
  for (int up = 0; up < 8; ++up) {
    const std::string parent = parent_path(at);
    if (parent == at || parent.empty()) break;
    at = parent;
    const std::string script = join_path(at, "bench/peers/nemo_step.py");
    if (Env::real().exists(script)) return script;
  }
  return "";
}

std::string config_folder(const std::string& name) {
  const std::string here = join_path("configs", name);
  if (Env::real().exists(here)) return here;
  const std::string script = own_peer_script();  // <tree>/bench/peers/nemo_step.py
  return script.empty() ? here : join_path(parent_path(parent_path(parent_path(script))), here);
}

Result<ProcessOutput> run_process(const std::vector<std::string>& args,
                                  const std::vector<std::string>& variables, bool with_errors) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return io_error(str_cat("cannot make a pipe: ", std::strerror(errno)));
  // All memory is taken before fork(): the child of a threaded process may only exec.
  std::vector<std::string> environment(variables);
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    const bool replaced = std::any_of(variables.begin(), variables.end(),
                                      [&](const auto& given) { return starts_with(given, name); });
    if (!replaced) environment.push_back(text);
  }
  std::vector<char*> argv, envp;
  for (const std::string& arg : args) argv.push_back(const_cast<char*>(arg.c_str()));
  for (const std::string& entry : environment) envp.push_back(const_cast<char*>(entry.c_str()));
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  const pid_t self = getpid(), child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    return io_error(str_cat("cannot start a process: ", std::strerror(errno)));
  }
  if (child == 0) {
    // It ends with this process, however that ends.
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != self) _exit(127);
    dup2(ends[1], STDOUT_FILENO);
    const int errors = with_errors ? ends[1] : open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (errors >= 0) dup2(errors, STDERR_FILENO);
    execvpe(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(ends[1]);
  ProcessOutput out;
  std::array<char, 65536> buffer;
  bool told = false;
  while (true) {
    const ssize_t got = read(ends[0], buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) {
      if (caught_signal() != 0 && !told) {
        told = true;
        kill(child, SIGTERM);
      }
      continue;
    }
    if (got <= 0) break;
    if (out.text.size() < kMaxText) out.text.append(buffer.data(), static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (out.exit_code == 127 && out.text.empty())
    return Status(StatusCode::kUnavailable, str_cat("'", args[0], "' could not be started"));
  return out;
}

std::string peer_precision(const std::string& precision) {
  if (precision == "bf16-mixed") return "bf16";
  if (precision == "16-mixed") return "16";
  return "32";
}

std::string tail_of(const std::string& text) {
  return text.size() > kShownTail ? text.substr(text.size() - kShownTail) : text;
}

Result<ProcessOutput> run_peer_cases(const std::string& tree, const std::string& python,
                                     const std::string& cases) {
  std::string script = join_path(tree, "bench_cases.py");
  if (!Env::real().exists(script)) {
    if (!Env::real().exists(join_path(tree, "nemo")))
      return not_found(str_cat(tree, " holds neither nemo/ nor bench_cases.py"));
    script = own_peer_script();
    if (script.empty())
      return not_found("bench/peers/nemo_step.py is not near this program")
          .with_hint("run aerie from a source tree");
  }
  return run_process({python, script, "--cases", cases}, {"NEMO_TREE=" + tree});
}

Result<PeerResult> find_peer_result(const std::string& text) {
  for (const std::string& line : split(text, '\n')) {
    if (line.empty() || line[0] != '{') continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("ms") || !json["ms"].is_number()) continue;
    PeerResult out;
    out.ms = json["ms"].get<double>();
    out.json = line;
    if (out.ms > 0.0) return out;
  }
  return not_found("the peer printed no result");
}

Result<PeerResult> run_peer_step(const PeerRequest& request) {
  Env& env = Env::real();
  std::vector<std::string> args{request.python};
  std::vector<std::string> variables;
  const std::string own = join_path(request.tree, "bench_step.py");
  if (env.exists(own)) {
    if (!request.model_file.empty())
      return unsupported(str_cat(own, " measures NEST of any size, not a configuration"))
          .with_hint("leave the configuration out, or give a folder with NeMo itself");
    if (request.tf32)
      return unsupported(str_cat(own, " measures float32 without TF32 alone"))
          .with_hint("give a folder with NeMo itself");
    args.push_back(own);
    args.push_back(str_cat(request.batch, "x", number(request.seconds), "x",
                           peer_precision(request.precision), "x", request.d_model, "x",
                           request.layers));
    // Where such a script finds NeMo, unless the caller has said so.
    if (std::getenv("NEMO_TREE") == nullptr && env.exists(join_path(request.tree, "nemo")))
      variables.push_back("NEMO_TREE=" + request.tree);
  } else if (env.exists(join_path(request.tree, "nemo"))) {
    const std::string script = own_peer_script();
    if (script.empty())
      return not_found("bench/peers/nemo_step.py is not near this program")
          .with_hint("run aerie from a source tree");
    args.push_back(script);
    const auto add = [&](const char* name, const std::string& value) {
      args.push_back(name);
      args.push_back(value);
    };
    add("--batch", str_cat(request.batch));
    add("--seconds", number(request.seconds));
    add("--precision", peer_precision(request.precision));
    add("--steps", str_cat(request.steps));
    add("--warmup", str_cat(request.warmup));
    add("--device", request.gpu ? "cuda" : "cpu");
    if (request.tf32) args.push_back("--tf32");
    if (!request.model_file.empty()) {
      add("--model", request.model_file);
    } else {
      add("--d-model", str_cat(request.d_model));
      add("--layers", str_cat(request.layers));
      add("--heads", str_cat(request.heads));
    }
    variables.push_back("NEMO_TREE=" + request.tree);
  } else {
    return not_found(str_cat(request.tree, " holds neither nemo/ nor bench_step.py"));
  }
  AERIE_ASSIGN_OR_RETURN(const ProcessOutput output, run_process(args, variables));
  auto result = find_peer_result(output.text);
  if (result.ok()) return result;
  return Status(StatusCode::kUnavailable, str_cat("the Python peer failed (exit code ",
                                                  output.exit_code, "): ", tail_of(output.text)));
}

}  // namespace aerie::tools
