#include "aerie/models/nest/probe/probe_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/audio/audio_reader.h"
#include "aerie/base/signals.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"
#include "aerie/models/nest/features/input_list.h"

namespace aerie::probe {
namespace {

using LineJson = nlohmann::json;

constexpr int kNoiseAttempts = 20;
// The stream of the order of lines; mixing draws use the line's number as position.
constexpr uint64_t kOrderPosition = ~uint64_t{0};

double mean_power(const std::vector<float>& samples) {
  double sum = 0.0;
  for (const float x : samples) sum += static_cast<double>(x) * static_cast<double>(x);
  return samples.empty() ? 0.0 : sum / static_cast<double>(samples.size());
}

Result<std::vector<float>> read_line(Env& env, const data::Manifest& manifest, uint64_t line,
                                     int64_t sample_rate, const audio::Segment& segment) {
  audio::ReadOptions options;
  options.sample_rate = static_cast<int>(sample_rate);
  options.channels = manifest.channel(line) >= 0
                         ? audio::ChannelSelector::index(manifest.channel(line))
                         : audio::ChannelSelector::average();
  options.env = &env;
  options.strict = true;
  audio::AudioReader reader(options);
  const std::vector<std::string> paths = manifest.resolve_paths(line);
  const auto view = manifest.is_list(line) ? reader.read_file_list(paths, segment)
                                           : reader.read_file(paths.front(), segment);
  if (!view.ok()) return view.status();
  std::vector<float> out(static_cast<size_t>(view->size()));
  view->copy_to(out.data());
  return out;
}

}  // namespace

Status parse_labels(std::string_view line, Utterance& out, const std::vector<std::string>& fields) {
  const LineJson json = LineJson::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return data_error("the line is not a JSON object");
  out.phonemes.clear();
  out.speaker.clear();
  out.labels.clear();
  for (const std::string& field : fields) {
    const auto value = json.find(field);
    if (value == json.end() || value->is_null()) continue;
    if (!value->is_string() && !value->is_number() && !value->is_boolean())
      return data_error(str_cat("`", field, "` is neither text, a number nor true or false"));
    out.labels[field] = value->is_string() ? value->get<std::string>() : value->dump();
  }
  if (const auto speaker = json.find("speaker"); speaker != json.end() && !speaker->is_null()) {
    if (speaker->is_string()) {
      out.speaker = speaker->get<std::string>();
    } else if (speaker->is_number_integer()) {
      out.speaker = speaker->dump();
    } else {
      return data_error("`speaker` is neither text nor a whole number");
    }
  }
  const auto phonemes = json.find("phonemes");
  if (phonemes == json.end() || phonemes->is_null()) return ok_status();
  if (!phonemes->is_array()) return data_error("`phonemes` is not a list");
  double before = 0.0;
  for (const LineJson& entry : *phonemes) {
    if (!entry.is_array() || entry.size() != 3 || !entry[0].is_string() || !entry[1].is_number() ||
        !entry[2].is_number())
      return data_error(
          str_cat("`phonemes` entry ", out.phonemes.size() + 1, " is not [label, begin, end]"));
    Span span{entry[0].get<std::string>(), entry[1].get<double>(), entry[2].get<double>()};
    if (!(span.begin_s >= before) || !(span.end_s >= span.begin_s))
      return data_error(str_cat("`phonemes` entry ", out.phonemes.size() + 1,
                                " begins before the one in front of it ends, or ends before it "
                                "begins"));
    before = span.end_s;
    out.phonemes.push_back(std::move(span));
  }
  return ok_status();
}

std::vector<uint64_t> choose_lines(uint64_t size, uint64_t skip, uint64_t count, uint64_t seed,
                                   uint32_t part) {
  std::vector<uint64_t> order(size);
  std::iota(order.begin(), order.end(), uint64_t{0});
  RandomStream random(seed, Purpose::kProbe, part, kOrderPosition);
  const uint64_t last = std::min(size, skip + count);
  for (uint64_t i = 0; i < last; ++i) std::swap(order[i], order[i + random.below(size - i)]);
  order.resize(last);
  order.erase(order.begin(), order.begin() + static_cast<int64_t>(std::min(skip, last)));
  return order;
}

Result<NoiseSource> NoiseSource::open(Env& env, const std::string& manifest, int64_t sample_rate) {
  AERIE_ASSIGN_OR_RETURN(data::Manifest opened, features::open_manifest(env, manifest));
  return NoiseSource(env, std::move(opened), sample_rate);
}

Result<std::vector<float>> NoiseSource::draw(RandomStream& random, int64_t samples) const {
  const double wanted_s = static_cast<double>(samples) / static_cast<double>(sample_rate_);
  Status last;
  for (int attempt = 0; attempt < kNoiseAttempts; ++attempt) {
    const uint64_t line = random.below(manifest_.size());
    const double place = random.uniform();
    audio::Segment segment;
    segment.offset_s = manifest_.offset_s(line);
    segment.duration_s = manifest_.duration_s(line);
    if (segment.duration_s > wanted_s) {
      segment.offset_s += place * (segment.duration_s - wanted_s);
      segment.duration_s = wanted_s;
    }
    auto clip = read_line(*env_, manifest_, line, sample_rate_, segment);
    if (!clip.ok()) {
      last = clip.status();
      continue;
    }
    if (mean_power(*clip) <= 0.0) {
      last = data_error("silent").with_context(manifest_.place(line));
      continue;
    }
    // A file without a duration was read whole, a short one is repeated.
    std::vector<float> out(static_cast<size_t>(samples));
    for (size_t i = 0; i < out.size(); ++i) out[i] = (*clip)[i % clip->size()];
    return out;
  }
  return std::move(last).with_context(str_cat("no usable noise after ", kNoiseAttempts, " draws"));
}

void add_noise(std::vector<float>& speech, const std::vector<float>& noise, double snr_db) {
  const double speech_power = mean_power(speech);
  const double noise_power = mean_power(noise);
  if (speech_power <= 0.0 || noise_power <= 0.0) return;
  const auto gain =
      static_cast<float>(std::sqrt(speech_power / noise_power * std::pow(10.0, -snr_db / 10.0)));
  for (size_t i = 0; i < speech.size() && i < noise.size(); ++i) speech[i] += gain * noise[i];
}

Result<Part> read_part(Env& env, const data::Manifest& manifest, std::span<const uint64_t> lines,
                       const NoiseSource* noise, const PartOptions& options) {
  struct Read {
    std::optional<Utterance> utterance;
    Status status;
  };
  ThreadPool pool({.name = "probe", .num_threads = options.workers});
  AERIE_ASSIGN_OR_RETURN(
      std::vector<Read> found, pool.parallel_map<Read>(lines.size(), [&](size_t i) -> Result<Read> {
        if (const int signal = caught_signal(); signal != 0)
          return cancelled(str_cat("stopped by ", signal_name(signal)));
        const uint64_t line = lines[i];
        Utterance utterance;
        utterance.place = manifest.place(line);
        AERIE_ASSIGN_OR_RETURN(const std::string raw, manifest.raw_line(line));
        if (const Status status = parse_labels(raw, utterance, options.fields); !status.ok())
          return status.with_context(utterance.place);
        audio::Segment segment;
        segment.offset_s = manifest.offset_s(line);
        segment.duration_s = manifest.duration_s(line);
        auto samples = read_line(env, manifest, line, options.sample_rate, segment);
        if (samples.ok() && samples->empty()) samples = data_error("no samples");
        if (!samples.ok()) return Read{{}, samples.status().with_context(utterance.place)};
        utterance.samples = std::move(samples).value();
        if (noise != nullptr) {
          RandomStream random(options.seed, Purpose::kProbe, options.part, line);
          const double snr_db = random.uniform(options.min_snr_db, options.max_snr_db);
          AERIE_ASSIGN_OR_RETURN(
              const std::vector<float> clip,
              noise->draw(random, static_cast<int64_t>(utterance.samples.size())));
          add_noise(utterance.samples, clip, snr_db);
        }
        return Read{std::move(utterance), {}};
      }));
  Part out;
  for (Read& read : found) {
    if (read.utterance) {
      out.utterances.push_back(std::move(*read.utterance));
    } else {
      out.skipped.push_back(std::move(read.status));
    }
  }
  if (out.utterances.empty())
    return out.skipped.empty() ? data_error("no utterances chosen")
                               : out.skipped.front().with_context("no utterance could be read");
  return out;
}

LabelSet::LabelSet(const std::vector<std::string>& names) {
  for (const std::string& name : names) numbers_.emplace(name, 0);
  int64_t next = 0;
  for (auto& [name, number] : numbers_) number = next++;
}

int64_t LabelSet::number(const std::string& name) const {
  const auto found = numbers_.find(name);
  return found == numbers_.end() ? size() : found->second;
}

int64_t num_centred_frames(int64_t samples, int64_t frame_samples) {
  if (samples <= 0) return 0;
  // The largest count with (2 * count - 1) * frame_samples < 2 * samples.
  return ((2 * samples - 1) / frame_samples + 1) / 2;
}

std::vector<int64_t> frame_labels(const Utterance& utterance, const LabelSet& labels,
                                  int64_t frame_samples, int64_t sample_rate) {
  const int64_t frames =
      num_centred_frames(static_cast<int64_t>(utterance.samples.size()), frame_samples);
  std::vector<int64_t> out(static_cast<size_t>(frames), -1);
  size_t span = 0;
  for (int64_t f = 0; f < frames; ++f) {
    const double centre_s = (static_cast<double>(f) + 0.5) * static_cast<double>(frame_samples) /
                            static_cast<double>(sample_rate);
    while (span < utterance.phonemes.size() && utterance.phonemes[span].end_s <= centre_s) ++span;
    if (span == utterance.phonemes.size()) break;
    if (utterance.phonemes[span].begin_s <= centre_s)
      out[static_cast<size_t>(f)] = labels.number(utterance.phonemes[span].label);
  }
  return out;
}

}  // namespace aerie::probe
