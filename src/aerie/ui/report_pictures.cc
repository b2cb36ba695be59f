#include "aerie/ui/report_pictures.h"

#include <algorithm>
#include <map>

#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/ui/svg_chart.h"

namespace aerie::ui {
namespace {

constexpr size_t kMaxPictures = 8;  // of a validation
constexpr size_t kMaxPictureBytes = 2u << 20;

std::string base64(std::string_view bytes) {
  static constexpr char kLetters[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t k = 0; k < 3; ++k)
      group = group << 8 | (k < count ? static_cast<uint8_t>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k) out += k <= count ? kLetters[group >> (18 - 6 * k) & 63u] : '=';
  }
  return out;
}

std::string figures(const std::vector<RunPicture>& pictures, int64_t step) {
  std::string out = "<div class=\"pictures\">\n";
  for (const RunPicture& picture : pictures) {
    if (picture.step != step) continue;
    out += str_cat("<figure class=\"picture\"><figcaption>", html_escape(picture.name), ", step ",
                   step, "</figcaption><img alt=\"cameras, truth, prediction and error of ",
                   html_escape(picture.name), "\" src=\"data:image/jpeg;base64,",
                   base64(picture.bytes), "\"></figure>\n");
  }
  return out + "</div>\n";
}

}  // namespace

std::vector<RunPicture> read_pictures(Env& env, const std::string& run_dir) {
  const std::string folder = join_path(run_dir, "pictures");
  std::map<int64_t, std::string> steps;
  if (const auto entries = env.list_dir(folder); entries.ok())
    for (const DirEntry& entry : *entries) {
      const std::string_view name = entry.name;
      if (!entry.is_dir || !starts_with(name, "step_")) continue;
      const auto step = parse_int<int64_t>(name.substr(5));
      if (step.ok()) steps.emplace(*step, join_path(folder, entry.name));
    }
  std::vector<RunPicture> out;
  if (steps.empty()) return out;
  const auto read = [&](int64_t step, const std::string& path) {
    const auto files = env.list_dir(path);
    if (!files.ok()) return;
    size_t taken = 0;
    for (const DirEntry& file : *files) {
      if (file.is_dir || !ends_with(file.name, ".jpg") || taken == kMaxPictures) continue;
      auto bytes = env.read_file(join_path(path, file.name), kMaxPictureBytes);
      if (!bytes.ok()) continue;
      out.push_back({step, file.name.substr(0, file.name.size() - 4), *std::move(bytes)});
      ++taken;
    }
  };
  read(steps.begin()->first, steps.begin()->second);
  if (steps.size() > 1) read(steps.rbegin()->first, steps.rbegin()->second);
  return out;
}

std::string pictures_section(const std::vector<RunPicture>& pictures) {
  if (pictures.empty()) return "";
  int64_t first = pictures.front().step, last = first;
  for (const RunPicture& picture : pictures) {
    first = std::min(first, picture.step);
    last = std::max(last, picture.step);
  }
  std::string out = str_cat(
      "<h2>Predictions</h2><p class=\"sub\">The same samples of the validation set at every "
      "validation; here after step ",
      last, ".</p>\n", figures(pictures, last));
  if (first != last)
    out += str_cat("<details><summary>the same samples at the first validation, step ", first,
                   "</summary>\n", figures(pictures, first), "</details>\n");
  return out;
}

}  // namespace aerie::ui
