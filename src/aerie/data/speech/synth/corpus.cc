#include "aerie/data/speech/synth/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>

#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/progress.h"
#include "aerie/base/signals.h"
#include "aerie/base/system.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/speech/synth/formant_synth.h"
#include "aerie/data/speech/synth/language.h"
#include "aerie/data/speech/synth/noise.h"
#include "aerie/data/speech/synth/streams.h"

namespace aerie::data::synth {

namespace {

using Json = nlohmann::ordered_json;

constexpr char kGenerator[] = "aerie data synth";
// Positions of parts in the random streams: part number, then item number.
constexpr int kPartShift = 40;
constexpr uint64_t kTestVoices = uint64_t{1} << 32;

// One manifest and its files.
struct Part {
  std::string name;
  std::string folder;  // below "audio/"
  bool is_noise = false;
  uint64_t number = 0;           // in the random streams
  std::vector<uint64_t> voices;  // voice numbers of the speakers
  char speaker_letter = 's';
  std::vector<int> frames;  // length of each item in synthesis frames
  double total_s() const {
    double sum = 0.0;
    for (const int count : frames) sum += count;
    return sum * kFrameSeconds;
  }
};

std::string padded(uint64_t value, int digits) {
  char out[32];
  std::snprintf(out, sizeof out, "%0*llu", digits, static_cast<unsigned long long>(value));
  return out;
}

// Frames as seconds, exactly: a frame is 25 ten-thousandths.
std::string seconds(int frames) {
  const int ticks = frames * 25;
  std::string out = str_cat(ticks / 10000, ".", padded(static_cast<uint64_t>(ticks % 10000), 4));
  while (out.back() == '0' && out[out.size() - 2] != '.') out.pop_back();
  return out;
}

std::string speaker_name(const Part& part, size_t speaker) {
  return str_cat(part.speaker_letter, padded(speaker, 3));
}

// Lengths drawn evenly between the bounds until `total_s` is reached; at least one.
std::vector<int> draw_lengths(const CorpusOptions& options, uint64_t part, double total_s) {
  const int low = static_cast<int>(std::lround(options.min_duration_s / kFrameSeconds));
  const int high = static_cast<int>(std::lround(options.max_duration_s / kFrameSeconds));
  int64_t left = std::llround(total_s / kFrameSeconds);
  std::vector<int> out;
  while (out.empty() || left >= low) {
    RandomStream random(options.seed, Purpose::kSynth, kLengthStream,
                        (part << kPartShift) | out.size());
    const int64_t drawn = random.randint(low, high);
    out.push_back(static_cast<int>(std::max<int64_t>(low, std::min(drawn, left))));
    left -= out.back();
  }
  return out;
}

std::vector<Part> plan_parts(const CorpusOptions& options) {
  const int num_test = std::clamp(static_cast<int>(std::lround(options.num_speakers * 0.2)), 1,
                                  options.num_speakers - 1);
  Part train{"train", "train", false, 0, {}, 's', {}};
  for (int v = 0; v < options.num_speakers - num_test; ++v)
    train.voices.push_back(static_cast<uint64_t>(v));
  Part dev = train;
  dev.name = dev.folder = "dev";
  dev.number = 1;
  Part test{"test", "test", false, 2, {}, 't', {}};
  for (int v = 0; v < num_test; ++v) test.voices.push_back(kTestVoices + static_cast<uint64_t>(v));

  const double total_s = options.hours * 3600.0;
  train.frames = draw_lengths(options, 0, total_s * (1 - options.dev_share - options.test_share));
  std::vector<Part> parts{std::move(train)};
  if (options.dev_share > 0.0) {
    dev.frames = draw_lengths(options, 1, total_s * options.dev_share);
    parts.push_back(std::move(dev));
  }
  if (options.test_share > 0.0) {
    test.frames = draw_lengths(options, 2, total_s * options.test_share);
    parts.push_back(std::move(test));
  }

  const double noise_hours =
      options.noise_hours >= 0.0 ? options.noise_hours : std::clamp(options.hours * 0.25, 0.2, 5.0);
  if (noise_hours > 0.0) {
    // Longer than any utterance, so that a cut from a clip covers it.
    const double clip_s = std::max(20.0, std::ceil(options.max_duration_s * 1.25));
    const int clip = static_cast<int>(std::lround(clip_s / kFrameSeconds));
    // At least one clip of each kind on either side.
    const auto clips = [&](double share) {
      return std::max<size_t>(
          kNumNoiseKinds, static_cast<size_t>(std::llround(noise_hours * share * 3600 / clip_s)));
    };
    parts.push_back({"noise", "noise", true, 3, {}, 'n', std::vector<int>(clips(0.8), clip)});
    parts.push_back(
        {"noise_test", "noise_test", true, 4, {}, 'n', std::vector<int>(clips(0.2), clip)});
  }
  return parts;
}

struct MadeFile {
  std::string manifest_line;
  uint64_t bytes = 0;
};

class Writer final {
 public:
  Writer(const CorpusOptions& options, Env& env) : options_(options), env_(env) {}

  Result<MadeFile> make(const Part& part, size_t item) const {
    return part.is_noise ? make_noise_clip(part, item) : make_utterance(part, item);
  }

 private:
  Result<MadeFile> make_utterance(const Part& part, size_t item) const {
    const uint64_t id = (part.number << kPartShift) | item;
    const size_t speaker = item % part.voices.size();
    const Voice voice = make_voice(options_.seed, part.voices[speaker]);
    const UtterancePlan plan = plan_utterance(options_.seed, id, voice, part.frames[item]);
    std::vector<float> samples = render_speech(options_.seed, id, plan, voice);
    record_speech(options_.seed, id, voice, samples);
    const std::string name = speaker_name(part, speaker);
    const std::string path = str_cat("audio/", part.folder, "/", name, "/", name, "-",
                                     padded(item, 6), ".", audio_format_name(options_.format));
    std::string line =
        str_cat(R"({"audio_filepath": ")", path, R"(", "duration": )", seconds(part.frames[item]),
                R"(, "text": ")", plan.text, R"(", "speaker": ")", name, R"(", "phonemes": [)");
    for (size_t i = 0; i < plan.phonemes.size(); ++i) {
      const PlannedPhoneme& sound = plan.phonemes[i];
      line += str_cat(i == 0 ? "" : ", ", "[\"", phoneme(sound.phoneme).label, "\", ",
                      seconds(sound.begin_frame), ", ", seconds(sound.end_frame), "]");
    }
    line += "]}\n";
    return write(path, std::move(line), samples);
  }

  Result<MadeFile> make_noise_clip(const Part& part, size_t item) const {
    const auto kind = static_cast<NoiseKind>(item % kNumNoiseKinds);
    const std::vector<float> samples = make_noise(options_.seed, (part.number << kPartShift) | item,
                                                  kind, part.frames[item] * kFrameSamples);
    const std::string path = str_cat("audio/", part.folder, "/", noise_kind_name(kind), "-",
                                     padded(item, 5), ".", audio_format_name(options_.format));
    std::string line =
        str_cat(R"({"audio_filepath": ")", path, R"(", "duration": )", seconds(part.frames[item]),
                R"(, "label": ")", noise_kind_name(kind), "\"}\n");
    return write(path, std::move(line), samples);
  }

  Result<MadeFile> write(const std::string& path, std::string line,
                         const std::vector<float>& samples) const {
    AERIE_ASSIGN_OR_RETURN(const std::string bytes,
                           encode_audio(to_pcm16(samples), kSampleRate, options_.format));
    AERIE_RETURN_IF_ERROR(env_.write_file(join_path(options_.out, path), bytes));
    return MadeFile{std::move(line), bytes.size()};
  }

  const CorpusOptions& options_;
  Env& env_;
};

// What makes two corpora the same.
Json options_json(const CorpusOptions& options) {
  return Json{{"hours", options.hours},
              {"speakers", options.num_speakers},
              {"seed", options.seed},
              {"format", audio_format_name(options.format)},
              {"min_duration", options.min_duration_s},
              {"max_duration", options.max_duration_s},
              {"dev_share", options.dev_share},
              {"test_share", options.test_share},
              {"noise_hours", options.noise_hours}};
}

Json describe(const CorpusOptions& options, const std::vector<Part>& parts, bool complete) {
  Json out{{"generator", kGenerator},
           {"format_version", 1},
           {"complete", complete},
           {"sample_rate", kSampleRate},
           {"options", options_json(options)}};
  Json phonemes = Json::array();
  for (int p = 0; p < kNumPhonemes; ++p) phonemes.push_back(phoneme(p).label);
  out["phonemes"] = std::move(phonemes);
  const Language& language = Language::instance();
  for (int w = 0; w < language.num_words(); ++w) {
    Json sounds = Json::array();
    for (const int index : language.word(w).phonemes) sounds.push_back(phoneme(index).label);
    out["lexicon"][language.word(w).text] = std::move(sounds);
  }
  for (const Part& part : parts) {
    Json entry{{"manifest", part.name + ".json"},
               {"files", part.frames.size()},
               {"hours", part.total_s() / 3600.0}};
    Json speakers = Json::array();
    for (size_t s = 0; s < part.voices.size(); ++s) {
      const std::string name = speaker_name(part, s);
      speakers.push_back(name);
      const Voice voice = make_voice(options.seed, part.voices[s]);
      out["voices"][name] = Json{{"pitch_hz", voice.pitch_hz},
                                 {"tract_scale", voice.tract_scale},
                                 {"rate", voice.rate},
                                 {"breathiness", voice.breathiness}};
    }
    if (!part.is_noise) entry["speakers"] = std::move(speakers);
    out["parts"][part.name] = std::move(entry);
  }
  return out;
}

enum class Found { kNothing, kUnfinished, kSame, kOther };

// Looks at what is in the folder already. Only a corpus of ours is ever replaced or continued.
Result<Found> inspect_folder(const CorpusOptions& options, Env& env) {
  auto entries = env.list_dir(options.out);
  if (!entries.ok()) {
    if (entries.status().code() == StatusCode::kNotFound) return Found::kNothing;
    return entries.status();
  }
  if (entries->empty()) return Found::kNothing;
  const auto text = env.read_file(join_path(options.out, "corpus.json"), 64 << 20);
  const Json there = Json::parse(text.ok() ? *text : "", nullptr, /*allow_exceptions=*/false);
  // Compared, never converted: the file may be anyone's, with any types in it.
  const auto entry = [&](const char* key) {
    const auto found = there.find(key);
    return found == there.end() ? Json() : *found;
  };
  if (!there.is_object() || entry("generator") != kGenerator)
    return invalid_argument(str_cat("'", options.out, "' is not empty and holds no corpus of ours"))
        .with_hint("choose another folder");
  if (options.force) return Found::kOther;
  if (entry("options") != options_json(options))
    return invalid_argument(str_cat("'", options.out, "' holds a corpus made with other options"))
        .with_hint("choose another folder, or --force to replace it");
  return entry("complete") == true ? Found::kSame : Found::kUnfinished;
}

// Removes what write_corpus() makes and nothing else.
Status remove_corpus(const CorpusOptions& options, Env& env) {
  for (const char* name : {"corpus.json", "train.json", "dev.json", "test.json", "noise.json",
                           "noise_test.json", "audio"})
    AERIE_RETURN_IF_ERROR(env.remove_tree(join_path(options.out, name)));
  return ok_status();
}

Status make_folders(const CorpusOptions& options, const std::vector<Part>& parts, Env& env) {
  for (const Part& part : parts) {
    const std::string folder = join_path(options.out, str_cat("audio/", part.folder));
    AERIE_RETURN_IF_ERROR(env.create_dirs(folder));
    for (size_t s = 0; s < part.voices.size(); ++s)
      AERIE_RETURN_IF_ERROR(env.create_dir(join_path(folder, speaker_name(part, s))));
  }
  return ok_status();
}

Status check_space(const CorpusOptions& options, const std::vector<Part>& parts, Env& env) {
  double total_s = 0.0;
  for (const Part& part : parts) total_s += part.total_s();
  // FLAC of this material takes about half; manifests add a few per cent.
  const double needed =
      total_s * kSampleRate * 2.0 * (options.format == AudioFormat::kFlac ? 0.6 : 1.0) * 1.05;
  const auto free = env.free_space(options.out);
  if (free.ok() && static_cast<double>(*free) < needed)
    return io_error(str_cat("the corpus takes about ", human_bytes(needed), ", '", options.out,
                            "' has room for ", human_bytes(static_cast<double>(*free))))
        .with_hint("fewer --hours, --format flac, or another folder");
  return ok_status();
}

// Makes one part in slices, so that memory stays small however large the corpus is.
Status write_part(const CorpusOptions& options, const Part& part, ThreadPool& pool,
                  Progress& progress, Env& env, uint64_t* bytes) {
  constexpr size_t kSlice = 1024;
  const Writer writer(options, env);
  const std::string path = join_path(options.out, part.name + ".json");
  AERIE_ASSIGN_OR_RETURN(const auto manifest, env.open_writable(path, WriteMode::kTruncate));
  for (size_t first = 0; first < part.frames.size(); first += kSlice) {
    const size_t count = std::min(kSlice, part.frames.size() - first);
    AERIE_ASSIGN_OR_RETURN(const std::vector<MadeFile> made,
                           pool.parallel_map<MadeFile>(count, [&](size_t i) -> Result<MadeFile> {
                             if (const int signal_number = caught_signal(); signal_number != 0)
                               return cancelled(str_cat("stopped by ", signal_name(signal_number)));
                             auto file = writer.make(part, first + i);
                             progress.add();
                             return file;
                           }));
    for (const MadeFile& file : made) {
      *bytes += file.bytes;
      AERIE_RETURN_IF_ERROR(manifest->append(file.manifest_line));
    }
  }
  return manifest->close();
}

}  // namespace

Status CorpusOptions::validate() const {
  const auto between = [](double value, double low, double high) {
    return value >= low && value <= high;  // false for nan
  };
  if (out.empty()) return invalid_argument("no folder given").with_hint("--out DIR");
  if (!between(hours, 0.0005, 100000.0))
    return invalid_argument(str_cat("--hours ", hours, " is not between 0.0005 and 100000"));
  if (num_speakers < 2 || num_speakers > 100000)
    return invalid_argument(str_cat("--speakers ", num_speakers, " is not between 2 and 100000"))
        .with_hint("at least one voice is kept for testing");
  if (!between(min_duration_s, 0.5, 3600.0) || !between(max_duration_s, min_duration_s, 3600.0))
    return invalid_argument(str_cat("durations from ", min_duration_s, " to ", max_duration_s,
                                    " s are not between 0.5 and 3600 s in this order"));
  if (!between(dev_share, 0.0, 0.9) || !between(test_share, 0.0, 0.9) ||
      dev_share + test_share > 0.95)
    return invalid_argument(
        "--dev-share and --test-share must be >= 0 and leave room for training");
  if (!between(noise_hours, 0.0, 10000.0) && noise_hours != -1.0)
    return invalid_argument(str_cat("--noise-hours ", noise_hours, " is not between 0 and 10000"));
  if (num_workers < 0 || num_workers > 1024)
    return invalid_argument(str_cat("--workers ", num_workers, " is not between 0 and 1024"));
  return ok_status();
}

Result<CorpusReport> write_corpus(const CorpusOptions& options, Env& env) {
  AERIE_RETURN_IF_ERROR(options.validate());
  const Stopwatch watch;
  const std::vector<Part> parts = plan_parts(options);
  CorpusReport report;
  for (const Part& part : parts)
    report.parts.push_back({part.name, part.frames.size(), part.total_s() / 3600.0,
                            static_cast<int>(part.voices.size())});

  AERIE_ASSIGN_OR_RETURN(const Found found, inspect_folder(options, env));
  if (found == Found::kSame) {
    report.reused = true;
    return report;
  }
  if (found == Found::kOther) AERIE_RETURN_IF_ERROR(remove_corpus(options, env));
  AERIE_RETURN_IF_ERROR(env.create_dirs(options.out));
  AERIE_RETURN_IF_ERROR(check_space(options, parts, env));
  const std::string description = join_path(options.out, "corpus.json");
  AERIE_RETURN_IF_ERROR(
      env.atomic_replace(description, describe(options, parts, false).dump(1) + "\n"));
  AERIE_RETURN_IF_ERROR(make_folders(options, parts, env));

  uint64_t num_files = 0;
  for (const Part& part : parts) num_files += part.frames.size();
  {
    Progress progress({.label = "synth", .total = num_files, .unit = "files"});
    ThreadPool pool({.name = "synth",
                     .num_threads = options.num_workers > 0 ? options.num_workers : cpu_count()});
    for (const Part& part : parts)
      AERIE_RETURN_IF_ERROR(write_part(options, part, pool, progress, env, &report.bytes));
  }
  AERIE_RETURN_IF_ERROR(
      env.atomic_replace(description, describe(options, parts, true).dump(1) + "\n"));
  report.elapsed_s = watch.elapsed_s();
  return report;
}

}  // namespace aerie::data::synth
