#include "aerie/data/speech/batch_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aerie/base/check.h"
#include "aerie/base/clock.h"
#include "aerie/base/retry.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/row_convert.h"

namespace aerie::data {

namespace {

// Rows begin at multiples of a cache line.
int64_t aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

constexpr double kInt16Energy = 1.0 / (32768.0 * 32768.0);

int16_t to_int16(float sample) {
  return static_cast<int16_t>(std::clamp(std::nearbyint(sample * 32768.0f), -32768.0f, 32767.0f));
}

}  // namespace

BuildThread::BuildThread(const BuildRules& rules)
    : reader(*rules.dataset), perturber(rules.perturber) {
  if (rules.dataset->noise() != nullptr && rules.dataset->noise()->size() > 0)
    noise = std::make_unique<NoiseReader>(rules.dataset->noise(), rules.noise, rules.noise_stats);
}

BatchBuilder::BatchBuilder(const BuildRules& rules, const BatchMemory& memory)
    : rules_(rules), memory_(memory) {}

BatchBuilder::~BatchBuilder() {
  memory_.give_back(block_);
}

int64_t row_samples(double duration_s, int sample_rate, const Perturber& perturber) {
  // Resampling and truncation may add a sample; a duration of 0 or less says nothing.
  if (!(duration_s > 0)) return 0;
  const double plain = std::ceil(duration_s * sample_rate) + 1;
  return static_cast<int64_t>(std::min(1e15, std::ceil(plain * perturber.max_length_factor())));
}

uint64_t BatchBuilder::layout_bytes(const BuildRules& rules, int64_t rows, int64_t noise_rows,
                                    int64_t capacity) {
  const int64_t cells = rows * capacity;
  int64_t bytes = aligned(cells * static_cast<int64_t>(dtype_size(rules.dtype)));
  if (rules.mix == MixPlace::kCpu) bytes += aligned(cells * 4);
  if (rules.noise_rows)
    bytes += aligned(noise_rows * capacity * static_cast<int64_t>(dtype_size(rules.noise_dtype())));
  return static_cast<uint64_t>(std::max<int64_t>(64, bytes));
}

// How to speak of a batch of rows x capacity that there is no room for.
MemoryWords BatchBuilder::memory_words(int64_t rows, int64_t capacity) const {
  MemoryWords out;
  out.what = str_cat("a batch of ", rows, " x ",
                     static_cast<double>(capacity) / batch_.sample_rate(), " s");
  out.where = longest_sample();
  out.budget_hint = "raise aerie.data.memory_budget_gib, or lower max_duration or batch_size";
  out.memory_hint = "lower max_duration, batch_size, num_workers or prefetch_factor";
  return out;
}

// "; the longest is train.json:17 (a.wav), 3600 s": where to look when a batch is too large.
std::string BatchBuilder::longest_sample() const {
  const PlannedSample* longest = nullptr;
  double longest_s = 0.0;
  for (const PlannedSample& sample : batch_.samples())
    if (const double d = rules_.dataset->duration_s(sample.sample); d > longest_s) {
      longest = &sample;
      longest_s = d;
    }
  if (longest == nullptr) return {};
  return str_cat("; the longest is ", rules_.dataset->describe(longest->sample), ", ", longest_s,
                 " s");
}

void BatchBuilder::lay_out(int64_t rows, int64_t capacity) {
  stride_ = capacity;
  audio().capacity = capacity;
  char* at = static_cast<char*>(block_.data());
  audio_ = nullptr;
  audio16_ = nullptr;
  noisy_ = nullptr;
  noise_ = nullptr;
  noise16_ = nullptr;
  if (rules_.dtype == Dtype::kI16) {
    audio16_ = reinterpret_cast<int16_t*>(at);
    at += aligned(rows * capacity * 2);
  } else {
    audio_ = reinterpret_cast<float*>(at);
    at += aligned(rows * capacity * 4);
  }
  if (rules_.mix == MixPlace::kCpu) {
    noisy_ = reinterpret_cast<float*>(at);
    at += aligned(rows * capacity * 4);
  }
  if (!rules_.noise_rows) return;
  if (rules_.noise_dtype() == Dtype::kI16)
    noise16_ = reinterpret_cast<int16_t*>(at);
  else
    noise_ = reinterpret_cast<float*>(at);
}

Status BatchBuilder::begin() {
  const AudioDataset& dataset = *rules_.dataset;
  audio().sample_rate = dataset.read_options().sample_rate;
  bad_.clear();
  const size_t n = batch_.samples().size();
  items_.resize(n);
  // The length is known from the manifest up to rounding; resampling may add a sample.
  int64_t need = rules_.min_samples;
  for (size_t i = 0; i < n; ++i) {
    const double d = dataset.duration_s(batch_.samples()[i].sample);
    if (!std::isnan(d))
      need = std::max(need, row_samples(d, audio().sample_rate, rules_.perturber));
  }
  const int64_t capacity = rules_.capacities.fit(need);
  // Who needs noise is decided by draws that do not depend on lengths.
  PhiloxMixDraws draws(rules_.seed, batch_.epoch());
  noise_rows_planned_ = 0;
  for (size_t i = 0; i < n; ++i) {
    const MixNeeds needs =
        mix_needs(rules_.augment, draws, n, {capacity, 0, batch_.samples()[i].position});
    const bool row = rules_.noise_rows && (needs.noise_samples > 0 || rules_.want_noise);
    items_[i].noise_row = row ? static_cast<int32_t>(noise_rows_planned_++) : -1;
  }
  // One for a batch that shrinks to one sample, which is then mixed with noise.
  noise_rows_planned_ = std::max<int64_t>(1, noise_rows_planned_);
  const uint64_t bytes =
      layout_bytes(rules_, static_cast<int64_t>(n), noise_rows_planned_, capacity);
  if (bytes > block_.bytes())
    AERIE_RETURN_IF_ERROR(memory_.take(block_, std::max(bytes, memory_.usual_bytes), [&] {
      return memory_words(static_cast<int64_t>(n), capacity);
    }));
  lay_out(static_cast<int64_t>(n), capacity);
  // A recording of unknown length may take what the batch could be widened by: its own samples,
  // kept aside, and the wider rows.
  constexpr int64_t kManySamples = 1 << 20;
  const double bytes_per_sample =
      static_cast<double>(
          layout_bytes(rules_, static_cast<int64_t>(n), noise_rows_planned_, kManySamples)) /
          kManySamples +
      sizeof(float);
  const double room = static_cast<double>(memory_.spare_bytes) / bytes_per_sample;
  room_samples_ = static_cast<int64_t>(std::max(static_cast<double>(capacity), room) /
                                       rules_.perturber.max_length_factor());
  return ok_status();
}

// Tail of the row behind the n samples that were written.
void BatchBuilder::close_row(size_t i, int64_t n) {
  const size_t tail = static_cast<size_t>(stride_ - n);
  const int64_t at = static_cast<int64_t>(i) * stride_ + n;
  if (audio16_ != nullptr) std::memset(audio16_ + at, 0, tail * sizeof(int16_t));
  if (audio_ != nullptr) std::memset(audio_ + at, 0, tail * sizeof(float));
  if (noisy_ != nullptr) std::memset(noisy_ + at, 0, tail * sizeof(float));
  items_[i].length = n;
}

// A row of n integers is in place: fill it up, make its noisy twin.
void BatchBuilder::write_int16_row(size_t i, int64_t n) {
  int16_t* row = audio16_ + static_cast<int64_t>(i) * stride_;
  n = audio::pad_to_min_length(row, n, rules_.min_samples, rules_.pad_mode);
  if (noisy_ != nullptr)
    items_[i].energy =
        kInt16Energy * static_cast<double>(convert_row(
                           row, n, noisy_ + static_cast<int64_t>(i) * stride_, nullptr));
  close_row(i, n);
}

void BatchBuilder::write_float_row(size_t i, const float* samples, int64_t n) {
  const int64_t at = static_cast<int64_t>(i) * stride_;
  if (audio16_ != nullptr) {
    // What is mixed must be what is delivered: rounded first.
    for (int64_t k = 0; k < n; ++k) audio16_[at + k] = to_int16(samples[k]);
    write_int16_row(i, n);
    return;
  }
  float* row = audio_ + at;
  if (n > 0) std::memcpy(row, samples, static_cast<size_t>(n) * sizeof(float));
  n = audio::pad_to_min_length(row, n, rules_.min_samples, rules_.pad_mode);
  if (noisy_ != nullptr) std::memcpy(noisy_ + at, row, static_cast<size_t>(n) * sizeof(float));
  close_row(i, n);
}

void BatchBuilder::write_row(size_t i, const audio::AudioView& view) {
  const int64_t at = static_cast<int64_t>(i) * stride_;
  const int64_t n = view.frames;
  items_[i].energy = -1.0;
  if (view.pcm16 == nullptr) {
    write_float_row(i, view.samples, n);
  } else if (audio16_ != nullptr) {
    if (view.pcm16 != audio16_ + at)
      std::memcpy(audio16_ + at, view.pcm16, static_cast<size_t>(n) * sizeof(int16_t));
    write_int16_row(i, n);
  } else if (n >= rules_.min_samples && noisy_ != nullptr) {
    items_[i].energy =
        kInt16Energy * static_cast<double>(convert_row(view.pcm16, n, audio_ + at, noisy_ + at));
    close_row(i, n);
  } else {
    (void)convert_row(view.pcm16, n, audio_ + at, nullptr);
    const int64_t padded =
        audio::pad_to_min_length(audio_ + at, n, rules_.min_samples, rules_.pad_mode);
    if (noisy_ != nullptr)
      std::memcpy(noisy_ + at, audio_ + at, static_cast<size_t>(padded) * sizeof(float));
    close_row(i, padded);
  }
}

Status BatchBuilder::read_noise(size_t i, int64_t wanted, BuildThread& thread) {
  Item& item = items_[i];
  PhiloxNoiseDraws draws(rules_.seed, batch_.epoch(), batch_.samples()[i].position);
  if (item.noise_row < 0) item.noise_row = 0;
  const int64_t at = item.noise_row * stride_;
  const size_t tail = static_cast<size_t>(stride_ - wanted);
  if (noise16_ != nullptr) {
    item.noise_len = thread.noise->read(item.length, wanted, draws, noise16_ + at);
    std::memset(noise16_ + at + wanted, 0, tail * sizeof(int16_t));
  } else {
    item.noise_len = thread.noise->read(item.length, wanted, draws, noise_ + at);
    std::memset(noise_ + at + wanted, 0, tail * sizeof(float));
  }
  item.has_noise = true;
  return thread.noise->error();
}

ItemFigures BatchBuilder::read_item(size_t i, AssemblerThread& thread) {
  read(i, static_cast<BuildThread&>(thread));
  const Item& item = items_[i];
  return {item.bytes_read, static_cast<double>(item.samples) / batch_.sample_rate(), item.noise_ns};
}

void BatchBuilder::read(size_t i, BuildThread& thread) {
  Item& item = items_[i];
  item.bad = ok_status();
  item.spill.clear();
  item.has_noise = false;
  item.noise_len = 0;
  item.bytes_read = item.samples = item.noise_ns = 0;
  const PlannedSample planned = batch_.samples()[i];
  // Integers can be read straight into their row.
  if (audio16_ != nullptr && thread.perturber.empty())
    thread.reader.audio.set_int16_target(audio16_ + static_cast<int64_t>(i) * stride_, stride_);
  thread.reader.room_samples = room_samples_;
  Result<audio::AudioView> view = rules_.dataset->read(planned.sample, thread.reader);
  thread.reader.audio.set_int16_target(nullptr, 0);
  if (!view.ok()) {
    item.bad = view.status();
    item.length = 0;
    return;
  }
  item.bytes_read = view->bytes_read;
  int64_t n = view->frames;
  if (!thread.perturber.empty()) {
    thread.samples.resize(static_cast<size_t>(n));
    view->copy_to(thread.samples.data());
    PhiloxPerturbDraws draws(rules_.seed, batch_.epoch(), planned.position);
    thread.perturber.apply(thread.samples, draws);
    view->pcm16 = nullptr;
    view->samples = thread.samples.data();
    n = view->frames = static_cast<int64_t>(thread.samples.size());
  }
  item.samples = n;
  if (n > stride_) {
    // Longer than the manifest said: kept aside until the batch can be laid out anew.
    const uint64_t bytes = static_cast<uint64_t>(n) * sizeof(float);
    if (!memory_.budget->take(bytes)) {
      item.bad = data_error(str_cat("decodes to ", static_cast<double>(n) / audio().sample_rate,
                                    " s, more than the loader's memory allows"))
                     .with_context(rules_.dataset->describe(planned.sample))
                     .with_hint(
                         "give its duration in the manifest and set max_duration, or raise "
                         "aerie.data.memory_budget_gib");
      return;
    }
    item.spill.resize(static_cast<size_t>(n));
    view->copy_to(item.spill.data());
    item.length = n;
    return;
  }
  write_row(i, *view);
  PhiloxMixDraws draws(rules_.seed, batch_.epoch());
  const MixNeeds needs =
      mix_needs(rules_.augment, draws, items_.size(), {item.length, 0, planned.position});
  // Now, while the row is in the cache.
  if (needs.mixed && item.energy < 0 && audio16_ != nullptr)
    item.energy = sum_of_squares(audio16_ + static_cast<int64_t>(i) * stride_, item.length);
  if (rules_.noise_rows && thread.noise != nullptr && needs.noise_samples > 0) {
    const int64_t start = Clock::real().monotonic_ns();
    item.bad = read_noise(i, needs.noise_samples, thread);
    item.noise_ns = Clock::real().monotonic_ns() - start;
  }
}

// Rows that turned out longer than planned: the batch moves to wider rows if memory allows.
void BatchBuilder::place_spills() {
  int64_t longest = 0;
  uint64_t held = 0;
  for (const Item& item : items_) {
    if (item.spill.empty()) continue;
    longest = std::max(longest, static_cast<int64_t>(item.spill.size()));
    held += item.spill.size() * sizeof(float);
  }
  if (longest == 0) return;
  const int64_t rows = static_cast<int64_t>(items_.size());
  const int64_t capacity = rules_.capacities.fit(longest);
  HostBlock wider;
  const Status allocated =
      memory_.take(wider, layout_bytes(rules_, rows, noise_rows_planned_, capacity),
                   [&] { return memory_words(rows, capacity); });
  if (!allocated.ok()) {
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].spill.empty()) continue;
      items_[i].bad = allocated.with_context(rules_.dataset->describe(batch_.samples()[i].sample));
      items_[i].spill = {};
    }
    memory_.budget->give(held);
    return;
  }
  const int64_t old_stride = stride_;
  const float* const old_audio = audio_;
  const int16_t* const old_audio16 = audio16_;
  const float* const old_noisy = noisy_;
  const float* const old_noise = noise_;
  const int16_t* const old_noise16 = noise16_;
  block_.swap(wider);
  lay_out(rows, capacity);
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (!item.bad.ok()) continue;
    if (!item.spill.empty()) {
      item.energy = -1.0;
      write_float_row(i, item.spill.data(), static_cast<int64_t>(item.spill.size()));
      item.spill = {};
      continue;
    }
    const size_t n = static_cast<size_t>(item.length);
    const int64_t to = static_cast<int64_t>(i) * stride_;
    const int64_t from = static_cast<int64_t>(i) * old_stride;
    if (audio_ != nullptr) std::memcpy(audio_ + to, old_audio + from, n * sizeof(float));
    if (audio16_ != nullptr) std::memcpy(audio16_ + to, old_audio16 + from, n * sizeof(int16_t));
    if (noisy_ != nullptr) std::memcpy(noisy_ + to, old_noisy + from, n * sizeof(float));
    const int64_t noise_to = item.noise_row * stride_;
    const int64_t noise_from = item.noise_row * old_stride;
    if (noise_ != nullptr && item.has_noise) {
      std::memcpy(noise_ + noise_to, old_noise + noise_from, n * sizeof(float));
      std::fill(noise_ + noise_to + item.length, noise_ + noise_to + stride_, 0.0f);
    }
    if (noise16_ != nullptr && item.has_noise) {
      std::memcpy(noise16_ + noise_to, old_noise16 + noise_from, n * sizeof(int16_t));
      std::fill(noise16_ + noise_to + item.length, noise16_ + noise_to + stride_, int16_t{0});
    }
    close_row(i, item.length);
  }
  memory_.budget->give(held + wider.bytes());
}

// Bad samples become silence or disappear; rows behind them move up.
void BatchBuilder::drop_bad_rows() {
  size_t kept = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (!item.bad.ok()) {
      const bool silence = rules_.on_bad == config::OnBadAudio::kZero;
      bad_.push_back({batch_.samples()[i], item.bad, silence ? "silence is used" : "skipped"});
      if (!silence) continue;
      const double d = rules_.dataset->duration_s(batch_.samples()[i].sample);
      const int64_t wanted =
          std::isnan(d) ? rules_.min_samples : static_cast<int64_t>(d * audio().sample_rate);
      const int64_t n = std::clamp<int64_t>(wanted, std::max<int64_t>(1, rules_.min_samples),
                                            std::max<int64_t>(stride_, 1));
      item.bad = ok_status();
      item.energy = 0.0;
      item.samples = 0;
      const int64_t at = static_cast<int64_t>(i) * stride_;
      if (audio_ != nullptr) std::fill_n(audio_ + at, n, 0.0f);
      if (audio16_ != nullptr) std::fill_n(audio16_ + at, n, int16_t{0});
      if (noisy_ != nullptr) std::fill_n(noisy_ + at, n, 0.0f);
      close_row(i, n);
    }
    if (kept != i) {
      const size_t cells = static_cast<size_t>(stride_);
      const int64_t to = static_cast<int64_t>(kept) * stride_;
      const int64_t from = static_cast<int64_t>(i) * stride_;
      if (audio_ != nullptr) std::memcpy(audio_ + to, audio_ + from, cells * 4);
      if (audio16_ != nullptr) std::memcpy(audio16_ + to, audio16_ + from, cells * 2);
      if (noisy_ != nullptr) std::memcpy(noisy_ + to, noisy_ + from, cells * 4);
      batch_.mutable_samples()[kept] = batch_.samples()[i];
      std::swap(items_[kept], items_[i]);
    }
    ++kept;
  }
  items_.resize(kept);
  batch_.mutable_samples().resize(kept);
}

Status BatchBuilder::mix(BuildThread& thread) {
  const size_t n = items_.size();
  PhiloxMixDraws draws(rules_.seed, batch_.epoch());
  inputs_.resize(n);
  audio_rows_.resize(n);
  energies_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    Item& item = items_[i];
    inputs_[i] = {item.length, 0, batch_.samples()[i].position};
    // Known only now: the row was too long at first, or the batch has shrunk to one.
    if (rules_.noise_rows && thread.noise != nullptr && !item.has_noise) {
      const MixNeeds needs = mix_needs(rules_.augment, draws, n, inputs_[i]);
      if (needs.noise_samples > 0)
        AERIE_RETURN_IF_ERROR(read_noise(i, needs.noise_samples, thread));
    }
    if (item.has_noise) inputs_[i].noise_len = item.noise_len;
    energies_[i] = item.energy;
    const int64_t at = static_cast<int64_t>(i) * stride_;
    audio_rows_[i] = {audio_ != nullptr ? audio_ + at : nullptr,
                      audio16_ != nullptr ? audio16_ + at : nullptr};
  }
  const size_t num_noise = static_cast<size_t>(noise_rows_planned_);
  noise_rows_.assign(num_noise, {});
  for (const Item& item : items_)
    if (item.has_noise)
      noise_rows_[item.noise_row] = {
          noise_ != nullptr ? noise_ + item.noise_row * stride_ : nullptr,
          noise16_ != nullptr ? noise16_ + item.noise_row * stride_ : nullptr};
  MixPlan& plan = audio().plan;
  plan_mix(rules_.augment, inputs_, draws, plan);
  for (MixSegment& segment : plan.segments)
    if (segment.source == MixSource::kNoise) segment.row = items_[segment.row].noise_row;
  const MixRows rows{inputs_, audio_rows_, noise_rows_, energies_};
  resolve_gains(rows, plan);
  audio().audio_len.resize(n);
  audio().noise_len.resize(n);
  audio().noisy_len.resize(n);
  for (size_t i = 0; i < n; ++i) {
    audio().audio_len[i] = items_[i].length;
    audio().noise_len[i] = plan.items[i].noise_len;
    audio().noisy_len[i] = plan.items[i].noisy_len;
    if (rules_.mix != MixPlace::kCpu) continue;
    add_segments(rows, plan, i, noisy_ + static_cast<int64_t>(i) * stride_);
  }
  if (rules_.mix == MixPlace::kCpu && rules_.want_noise) {
    // The raw noise is no longer needed; what was added takes its place. A row's own raw noise is
    // read while it is written, hence the copy.
    std::vector<float> copy;
    for (size_t i = 0; i < n; ++i) {
      const int32_t k = items_[i].noise_row;
      float* row = noise_ + k * stride_;
      if (!noise_rows_[k].empty()) {
        copy.assign(row, row + stride_);
        noise_rows_[k] = {copy.data(), nullptr};
      }
      write_noise(rows, plan, i, row, stride_);
    }
    // Rows of bad samples are left out: the others move up.
    for (size_t i = 0; i < n; ++i)
      if (items_[i].noise_row != static_cast<int32_t>(i))
        std::memmove(noise_ + static_cast<int64_t>(i) * stride_,
                     noise_ + items_[i].noise_row * stride_,
                     static_cast<size_t>(stride_) * sizeof(float));
  } else if (rules_.mix == MixPlace::kConsumer && !bad_.empty()) {
    // Rows of noise for samples that turned out bad: equal batches have equal bytes.
    for (size_t k = 0; k < num_noise; ++k) {
      if (!noise_rows_[k].empty()) continue;
      const int64_t at = static_cast<int64_t>(k) * stride_;
      if (noise_ != nullptr) std::fill_n(noise_ + at, stride_, 0.0f);
      if (noise16_ != nullptr) std::fill_n(noise16_ + at, stride_, int16_t{0});
    }
  }
  return ok_status();
}

void BatchBuilder::list_arrays() {
  const int64_t rows = static_cast<int64_t>(items_.size());
  std::vector<HostArray>& arrays = batch_.mutable_arrays();
  arrays.clear();
  const auto matrix = [&](std::string_view name, Dtype dtype, void* data, int64_t count) {
    arrays.push_back({name, dtype, {count, stride_, 0, 0}, 2, data});
  };
  const auto lengths = [&](std::string_view name, std::vector<int64_t>& values) {
    arrays.push_back({name, Dtype::kI64, {rows, 0, 0, 0}, 1, values.data()});
  };
  if (audio16_ != nullptr)
    matrix("audio", Dtype::kI16, audio16_, rows);
  else
    matrix("audio", Dtype::kF32, audio_, rows);
  lengths("audio_len", audio().audio_len);
  if (noisy_ != nullptr) matrix("noisy_audio", Dtype::kF32, noisy_, rows);
  lengths("noisy_audio_len", audio().noisy_len);
  if (rules_.mix == MixPlace::kConsumer && rules_.noise_rows) {
    // Only rows somebody needs; the rows of samples that turned out bad are among them.
    int64_t count = 0;
    for (const Item& item : items_)
      if (item.has_noise) count = std::max<int64_t>(count, item.noise_row + 1);
    if (noise16_ != nullptr)
      matrix("noise", Dtype::kI16, noise16_, count);
    else
      matrix("noise", Dtype::kF32, noise_, count);
  } else if (rules_.want_noise) {
    matrix("noise", Dtype::kF32, noise_, rows);
  }
  lengths("noise_len", audio().noise_len);
}

Status BatchBuilder::finish(AssemblerThread& thread) {
  // The machine's trouble, not the recording's: which samples a run sees must not depend on it.
  for (size_t i = 0; i < items_.size(); ++i)
    if (is_passing(items_[i].bad))
      return items_[i].bad.with_context(rules_.dataset->describe(batch_.samples()[i].sample));
  place_spills();
  if (rules_.on_bad == config::OnBadAudio::kFail)
    for (size_t i = 0; i < items_.size(); ++i)
      if (!items_[i].bad.ok())
        return items_[i]
            .bad.with_context(rules_.dataset->describe(batch_.samples()[i].sample))
            .with_hint("set aerie.on_bad_audio=skip to go on without such samples");
  drop_bad_rows();
  audio().mixed = rules_.mix == MixPlace::kCpu;
  audio().padded_length = 0;
  batch_.mutable_sample_ids().resize(items_.size());
  audio().source_samples = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    audio().source_samples += items_[i].samples;
    audio().padded_length = std::max(audio().padded_length, items_[i].length);
    batch_.mutable_sample_ids()[i] = rules_.dataset->sample_id(batch_.samples()[i].sample);
  }
  AERIE_RETURN_IF_ERROR(mix(static_cast<BuildThread&>(thread)));
  list_arrays();
  rules_.finished_cells->fetch_add(static_cast<uint64_t>(batch_.fill().all));
  block_.settle();
  return ok_status();
}

}  // namespace aerie::data
