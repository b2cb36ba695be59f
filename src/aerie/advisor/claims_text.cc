#include <algorithm>
#include <cstdio>

#include "aerie/advisor/claims.h"
#include "aerie/base/strings.h"
#include "aerie/ui/ratio_chart.h"
#include "aerie/ui/report.h"
#include "aerie/ui/svg_chart.h"

namespace aerie::advisor {

namespace {

constexpr size_t kColumns = 5;
const char* const kHeads[kColumns] = {"", "claim", "measured here", "holds?", "why"};

// Characters on a terminal: bytes that continue one are none.
size_t shown_width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u;
  }));
}

// Lines of at most `width` characters, cut at spaces where there are any.
std::vector<std::string> folded(const std::string& text, size_t width) {
  std::vector<std::string> out{""};
  for (const std::string& word : split(text, ' ')) {
    const size_t used = shown_width(out.back());
    if (used > 0 && used + 1 + shown_width(word) > width)
      out.push_back(word);
    else
      out.back() += used == 0 ? word : " " + word;
  }
  return out;
}

std::string padded(const std::string& text, size_t width) {
  const size_t used = shown_width(text);
  return used < width ? text + std::string(width - used, ' ') : text;
}

const char* model_title(const std::string& model) {
  return model == "bev" ? "LSS + Swin" : "NEST";
}

std::vector<std::string> models_of(const std::vector<ClaimResult>& rows) {
  std::vector<std::string> out;
  for (const ClaimResult& row : rows)
    if (std::find(out.begin(), out.end(), row.model) == out.end()) out.push_back(row.model);
  return out;
}

std::string engine_of(const std::vector<ClaimResult>& rows, const std::string& model) {
  for (const ClaimResult& row : rows)
    if (row.model == model && row.where.empty())
      for (const ClaimFigures& setting : row.settings)
        if (!setting.engine.empty()) return setting.engine;
  return "";
}

std::string machine_text(const ClaimTable& table) {
  return str_cat(table.gpu.empty() ? "" : table.gpu + ", ", table.cpu, ", ", table.cpus,
                 table.cpus == 1 ? " CPU" : " CPUs", "; commit ", table.commit);
}

std::string summary_of(const std::vector<ClaimResult>& rows) {
  size_t counts[5] = {};
  for (const ClaimResult& row : rows) ++counts[static_cast<size_t>(row.verdict)];
  return str_cat(counts[0], counts[0] == 1 ? " claim holds, " : " claims hold, ", counts[1],
                 counts[1] == 1 ? " holds in part, " : " hold in part, ", counts[2],
                 counts[2] == 1 ? " does not, " : " do not, ", counts[3],
                 counts[3] == 1 ? " is" : " are", " unclear, ", counts[4],
                 " could not be judged here");
}

std::string without_bars(std::string text) {
  for (size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.insert(at, 1, '\\');
  return text;
}

int colour_of(ClaimVerdict verdict) {
  switch (verdict) {
    case ClaimVerdict::kHolds:
      return 2;
    case ClaimVerdict::kPartly:
      return 1;
    case ClaimVerdict::kFails:
      return 4;
    case ClaimVerdict::kUnclear:
    case ClaimVerdict::kNotMeasured:
      break;
  }
  return 0;
}

// Behind a bar, where there is not much room.
std::string bar_text(const ClaimResult& row) {
  if (!row.has_figures()) return row.needs.empty() ? "not measured" : row.needs;
  char text[64];
  std::snprintf(text, sizeof text, "%.2fx ", row.last_speedup());
  return str_cat(text, row.needs.empty() ? claim_verdict_name(row.verdict)
                                         : str_cat("(", row.needs, ")").c_str());
}

}  // namespace

std::string ClaimTable::to_text(int width) const {
  std::string out = machine_text(*this) + "\n";
  for (const std::string& model : models_of(rows)) {
    const std::string engine = engine_of(rows, model);
    out += str_cat("\n", model_title(model), engine.empty() ? "" : ", ", engine, "\n");
    // Widths of the first four follow from a share each, the last takes the rest.
    const auto total = static_cast<size_t>(std::max(width, 100));
    size_t widths[kColumns] = {total * 18 / 100, total * 17 / 100, total * 19 / 100, 8, total};
    for (size_t i = 0; i + 1 < kColumns; ++i) widths[kColumns - 1] -= widths[i] + 2;
    const auto line = [&](const std::string(&cells)[kColumns]) {
      std::vector<std::string> parts[kColumns];
      size_t height = 0;
      for (size_t i = 0; i < kColumns; ++i) {
        parts[i] = folded(cells[i], widths[i]);
        height = std::max(height, parts[i].size());
      }
      for (size_t y = 0; y < height; ++y) {
        std::string text;
        for (size_t i = 0; i < kColumns; ++i)
          text += padded(y < parts[i].size() ? parts[i][y] : "", widths[i]) + "  ";
        while (!text.empty() && text.back() == ' ') text.pop_back();
        out += text + "\n";
      }
    };
    line({kHeads[0], kHeads[1], kHeads[2], kHeads[3], kHeads[4]});
    for (const ClaimResult& row : rows)
      if (row.model == model)
        line({row.what, row.claim, row.measured, claim_verdict_name(row.verdict), row.why});
  }
  return str_cat(out, "\n", summary_of(rows), ".\n");
}

std::string ClaimTable::to_markdown() const {
  std::string out = str_cat(machine_text(*this), ".\n\n```\n", command, "\n```\n");
  for (const std::string& model : models_of(rows)) {
    const std::string engine = engine_of(rows, model);
    out += str_cat("\n## ", model_title(model), engine.empty() ? "" : ", ", engine,
                   "\n| row | claim | measured here | holds | why |\n|---|---|---|---|---|\n");
    for (const ClaimResult& row : rows)
      if (row.model == model)
        out += str_cat("| ", without_bars(row.what), " | ", without_bars(row.claim), " | ",
                       without_bars(row.measured), " | ", claim_verdict_name(row.verdict), " | ",
                       without_bars(row.why), " |\n");
  }
  return str_cat(out, "\n", summary_of(rows), ".\n");
}

std::string ClaimTable::to_html() const {
  std::string body = str_cat("<h1>What the guides promise, measured</h1>\n<p class=\"sub\">",
                             ui::html_escape(machine_text(*this)), "</p>\n<p class=\"verdict\">",
                             ui::html_escape(summary_of(rows)), ".</p>\n");
  for (const std::string& model : models_of(rows)) {
    std::vector<ui::RatioBar> bars;
    std::string table = "<div class=\"wide\"><table><tr>";
    for (const char* head : kHeads) table += str_cat("<th>", head, "</th>");
    table += "</tr>\n";
    for (const ClaimResult& row : rows) {
      if (row.model != model) continue;
      ui::RatioBar bar;
      bar.name = row.name;
      bar.ratio = row.last_speedup();
      // Ranges that are of iterations belong to another axis.
      const bool of_input =
          row.step_ratio <= 0.0 || row.measured.find("iter/s") == std::string::npos;
      bar.low = of_input ? row.claim_low : 0.0;
      bar.high = of_input ? row.claim_high : 0.0;
      bar.noise = row.has_figures() ? row.noise : 0.0;
      bar.text = bar_text(row);
      bar.colour = colour_of(row.verdict);
      bars.push_back(std::move(bar));
      table += "<tr>";
      for (const std::string& cell : {row.what, row.claim, row.measured,
                                      std::string(claim_verdict_name(row.verdict)), row.why})
        table += str_cat("<td class=\"text\">", ui::html_escape(cell), "</td>");
      table += "</tr>\n";
    }
    const std::string engine = engine_of(rows, model);
    body += str_cat(
        "<h2>", model_title(model), "</h2>\n",
        engine.empty() ? "" : str_cat("<p class=\"sub\">", ui::html_escape(engine), "</p>\n"),
        ui::ratio_chart("Input a second beside the first setting",
                        "times; grey: what was promised in figures; black: noise", bars),
        table, "</table></div>\n");
  }
  return ui::report_page("Claims", body);
}

}  // namespace aerie::advisor
