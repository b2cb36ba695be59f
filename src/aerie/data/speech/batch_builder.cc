#include "aerie/data/speech/batch_builder.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "aerie/base/check.h"
#include "aerie/base/clock.h"
#include "aerie/base/retry.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
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

bool MemoryBudget::take(uint64_t bytes) {
  uint64_t used = used_.load();
  do {
    if (bytes > limit_ || used > limit_ - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes));
  return true;
}

BuildThread::BuildThread(const BuildRules& rules)
    : reader(*rules.dataset), perturber(rules.perturber) {
  if (rules.dataset->noise() != nullptr && rules.dataset->noise()->size() > 0)
    noise = std::make_unique<NoiseReader>(rules.dataset->noise(), rules.noise, rules.noise_stats);
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
  int64_t bytes = aligned(cells * static_cast<int64_t>(dtype_bytes(rules.dtype)));
  if (rules.mix == MixPlace::kCpu) bytes += aligned(cells * 4);
  if (rules.noise_rows)
    bytes +=
        aligned(noise_rows * capacity * static_cast<int64_t>(dtype_bytes(rules.noise_dtype())));
  return static_cast<uint64_t>(std::max<int64_t>(64, bytes));
}

// A block for rows x capacity, counted in the budget.
Status BatchBuilder::allocate(const BuildRules& rules, int64_t rows, int64_t capacity,
                              uint64_t bytes, HostBlock& block) const {
  if (!rules.budget->take(bytes))
    return out_of_memory(str_cat("a batch of ", rows, " x ",
                                 static_cast<double>(capacity) / batch_.sample_rate_, " s needs ",
                                 human_bytes(static_cast<double>(bytes)), "; the loader may use ",
                                 human_bytes(static_cast<double>(rules.budget->limit())),
                                 longest_sample(rules)))
        .with_hint("raise aerie.data.memory_budget_gib, or lower max_duration or batch_size");
  if (block.reserve(*rules.allocator, bytes)) return ok_status();
  rules.budget->give(bytes);
  return out_of_memory(str_cat("no ", rules.allocator->kind(), " memory for a batch of ",
                               human_bytes(static_cast<double>(bytes)), longest_sample(rules)))
      .with_hint("lower max_duration, batch_size, num_workers or prefetch_factor");
}

// "; the longest is train.json:17 (a.wav), 3600 s": where to look when a batch is too large.
std::string BatchBuilder::longest_sample(const BuildRules& rules) const {
  const PlannedSample* longest = nullptr;
  double longest_s = 0.0;
  for (const PlannedSample& sample : batch_.samples_)
    if (const double d = rules.dataset->duration_s(sample.sample); d > longest_s) {
      longest = &sample;
      longest_s = d;
    }
  if (longest == nullptr) return {};
  return str_cat("; the longest is ", rules.dataset->describe(longest->sample), ", ", longest_s,
                 " s");
}

void BatchBuilder::lay_out(const BuildRules& rules, int64_t rows, int64_t capacity) {
  stride_ = capacity;
  batch_.capacity_ = capacity;
  char* at = static_cast<char*>(block_.data());
  audio_ = nullptr;
  audio16_ = nullptr;
  noisy_ = nullptr;
  noise_ = nullptr;
  noise16_ = nullptr;
  if (rules.dtype == DType::kInt16) {
    audio16_ = reinterpret_cast<int16_t*>(at);
    at += aligned(rows * capacity * 2);
  } else {
    audio_ = reinterpret_cast<float*>(at);
    at += aligned(rows * capacity * 4);
  }
  if (rules.mix == MixPlace::kCpu) {
    noisy_ = reinterpret_cast<float*>(at);
    at += aligned(rows * capacity * 4);
  }
  if (!rules.noise_rows) return;
  if (rules.noise_dtype() == DType::kInt16)
    noise16_ = reinterpret_cast<int16_t*>(at);
  else
    noise_ = reinterpret_cast<float*>(at);
}

void BatchBuilder::release_memory(const BuildRules& rules) {
  rules.budget->give(block_.bytes());
  block_.reset();
}

Status BatchBuilder::begin(const BuildRules& rules) {
  const AudioDataset& dataset = *rules.dataset;
  batch_.sample_rate_ = dataset.read_options().sample_rate;
  bad_.clear();
  const size_t n = batch_.samples_.size();
  items_.resize(n);
  // The length is known from the manifest up to rounding; resampling may add a sample.
  int64_t need = rules.min_samples;
  for (size_t i = 0; i < n; ++i) {
    const double d = dataset.duration_s(batch_.samples_[i].sample);
    if (!std::isnan(d)) need = std::max(need, row_samples(d, batch_.sample_rate_, rules.perturber));
  }
  const int64_t capacity = rules.capacities.fit(need);
  // Who needs noise is decided by draws that do not depend on lengths.
  PhiloxMixDraws draws(rules.seed, batch_.epoch_);
  noise_rows_planned_ = 0;
  for (size_t i = 0; i < n; ++i) {
    const MixNeeds needs =
        mix_needs(rules.augment, draws, n, {capacity, 0, batch_.samples_[i].position});
    const bool row = rules.noise_rows && (needs.noise_samples > 0 || rules.want_noise);
    items_[i].noise_row = row ? static_cast<int32_t>(noise_rows_planned_++) : -1;
  }
  // One for a batch that shrinks to one sample, which is then mixed with noise.
  noise_rows_planned_ = std::max<int64_t>(1, noise_rows_planned_);
  const uint64_t bytes =
      layout_bytes(rules, static_cast<int64_t>(n), noise_rows_planned_, capacity);
  if (bytes > block_.bytes()) {
    release_memory(rules);
    AERIE_RETURN_IF_ERROR(allocate(rules, static_cast<int64_t>(n), capacity,
                                   std::max(bytes, rules.usual_bytes), block_));
  }
  lay_out(rules, static_cast<int64_t>(n), capacity);
  // A recording of unknown length may take what the batch could be widened by: its own samples,
  // kept aside, and the wider rows.
  constexpr int64_t kManySamples = 1 << 20;
  const double bytes_per_sample =
      static_cast<double>(
          layout_bytes(rules, static_cast<int64_t>(n), noise_rows_planned_, kManySamples)) /
          kManySamples +
      sizeof(float);
  const double room = static_cast<double>(rules.spare_bytes) / bytes_per_sample;
  room_samples_ = static_cast<int64_t>(std::max(static_cast<double>(capacity), room) /
                                       rules.perturber.max_length_factor());
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
void BatchBuilder::write_int16_row(const BuildRules& rules, size_t i, int64_t n) {
  int16_t* row = audio16_ + static_cast<int64_t>(i) * stride_;
  n = audio::pad_to_min_length(row, n, rules.min_samples, rules.pad_mode);
  if (noisy_ != nullptr)
    items_[i].energy =
        kInt16Energy * static_cast<double>(convert_row(
                           row, n, noisy_ + static_cast<int64_t>(i) * stride_, nullptr));
  close_row(i, n);
}

void BatchBuilder::write_float_row(const BuildRules& rules, size_t i, const float* samples,
                                   int64_t n) {
  const int64_t at = static_cast<int64_t>(i) * stride_;
  if (audio16_ != nullptr) {
    // What is mixed must be what is delivered: rounded first.
    for (int64_t k = 0; k < n; ++k) audio16_[at + k] = to_int16(samples[k]);
    write_int16_row(rules, i, n);
    return;
  }
  float* row = audio_ + at;
  if (n > 0) std::memcpy(row, samples, static_cast<size_t>(n) * sizeof(float));
  n = audio::pad_to_min_length(row, n, rules.min_samples, rules.pad_mode);
  if (noisy_ != nullptr) std::memcpy(noisy_ + at, row, static_cast<size_t>(n) * sizeof(float));
  close_row(i, n);
}

void BatchBuilder::write_row(const BuildRules& rules, size_t i, const audio::AudioView& view) {
  const int64_t at = static_cast<int64_t>(i) * stride_;
  const int64_t n = view.frames;
  items_[i].energy = -1.0;
  if (view.pcm16 == nullptr) {
    write_float_row(rules, i, view.samples, n);
  } else if (audio16_ != nullptr) {
    if (view.pcm16 != audio16_ + at)
      std::memcpy(audio16_ + at, view.pcm16, static_cast<size_t>(n) * sizeof(int16_t));
    write_int16_row(rules, i, n);
  } else if (n >= rules.min_samples && noisy_ != nullptr) {
    items_[i].energy =
        kInt16Energy * static_cast<double>(convert_row(view.pcm16, n, audio_ + at, noisy_ + at));
    close_row(i, n);
  } else {
    (void)convert_row(view.pcm16, n, audio_ + at, nullptr);
    const int64_t padded =
        audio::pad_to_min_length(audio_ + at, n, rules.min_samples, rules.pad_mode);
    if (noisy_ != nullptr)
      std::memcpy(noisy_ + at, audio_ + at, static_cast<size_t>(padded) * sizeof(float));
    close_row(i, padded);
  }
}

Status BatchBuilder::read_noise(const BuildRules& rules, size_t i, int64_t wanted,
                                BuildThread& thread) {
  Item& item = items_[i];
  PhiloxNoiseDraws draws(rules.seed, batch_.epoch_, batch_.samples_[i].position);
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

void BatchBuilder::read_item(const BuildRules& rules, size_t i, BuildThread& thread) {
  Item& item = items_[i];
  item.bad = ok_status();
  item.spill.clear();
  item.has_noise = false;
  item.noise_len = 0;
  item.figures = {};
  const PlannedSample planned = batch_.samples_[i];
  // Integers can be read straight into their row.
  if (audio16_ != nullptr && thread.perturber.empty())
    thread.reader.audio.set_int16_target(audio16_ + static_cast<int64_t>(i) * stride_, stride_);
  thread.reader.room_samples = room_samples_;
  Result<audio::AudioView> view = rules.dataset->read(planned.sample, thread.reader);
  thread.reader.audio.set_int16_target(nullptr, 0);
  if (!view.ok()) {
    item.bad = view.status();
    item.length = 0;
    return;
  }
  item.figures.bytes_read = view->bytes_read;
  int64_t n = view->frames;
  if (!thread.perturber.empty()) {
    thread.samples.resize(static_cast<size_t>(n));
    view->copy_to(thread.samples.data());
    PhiloxPerturbDraws draws(rules.seed, batch_.epoch_, planned.position);
    thread.perturber.apply(thread.samples, draws);
    view->pcm16 = nullptr;
    view->samples = thread.samples.data();
    n = view->frames = static_cast<int64_t>(thread.samples.size());
  }
  item.figures.samples = n;
  if (n > stride_) {
    // Longer than the manifest said: kept aside until the batch can be laid out anew.
    const uint64_t bytes = static_cast<uint64_t>(n) * sizeof(float);
    if (!rules.budget->take(bytes)) {
      item.bad = data_error(str_cat("decodes to ", static_cast<double>(n) / batch_.sample_rate_,
                                    " s, more than the loader's memory allows"))
                     .with_context(rules.dataset->describe(planned.sample))
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
  write_row(rules, i, *view);
  PhiloxMixDraws draws(rules.seed, batch_.epoch_);
  const MixNeeds needs =
      mix_needs(rules.augment, draws, items_.size(), {item.length, 0, planned.position});
  // Now, while the row is in the cache.
  if (needs.mixed && item.energy < 0 && audio16_ != nullptr)
    item.energy = sum_of_squares(audio16_ + static_cast<int64_t>(i) * stride_, item.length);
  if (rules.noise_rows && thread.noise != nullptr && needs.noise_samples > 0) {
    const int64_t start = Clock::real().monotonic_ns();
    item.bad = read_noise(rules, i, needs.noise_samples, thread);
    item.figures.noise_ns = Clock::real().monotonic_ns() - start;
  }
}

// Rows that turned out longer than planned: the batch moves to wider rows if memory allows.
void BatchBuilder::place_spills(const BuildRules& rules) {
  int64_t longest = 0;
  uint64_t held = 0;
  for (const Item& item : items_) {
    if (item.spill.empty()) continue;
    longest = std::max(longest, static_cast<int64_t>(item.spill.size()));
    held += item.spill.size() * sizeof(float);
  }
  if (longest == 0) return;
  const int64_t rows = static_cast<int64_t>(items_.size());
  const int64_t capacity = rules.capacities.fit(longest);
  HostBlock wider;
  const Status allocated = allocate(
      rules, rows, capacity, layout_bytes(rules, rows, noise_rows_planned_, capacity), wider);
  if (!allocated.ok()) {
    for (size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].spill.empty()) continue;
      items_[i].bad = allocated.with_context(rules.dataset->describe(batch_.samples_[i].sample));
      items_[i].spill = {};
    }
    rules.budget->give(held);
    return;
  }
  const int64_t old_stride = stride_;
  const float* const old_audio = audio_;
  const int16_t* const old_audio16 = audio16_;
  const float* const old_noisy = noisy_;
  const float* const old_noise = noise_;
  const int16_t* const old_noise16 = noise16_;
  block_.swap(wider);
  lay_out(rules, rows, capacity);
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (!item.bad.ok()) continue;
    if (!item.spill.empty()) {
      item.energy = -1.0;
      write_float_row(rules, i, item.spill.data(), static_cast<int64_t>(item.spill.size()));
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
  rules.budget->give(held + wider.bytes());
}

// Bad samples become silence or disappear; rows behind them move up.
void BatchBuilder::drop_bad_rows(const BuildRules& rules) {
  size_t kept = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    Item& item = items_[i];
    if (!item.bad.ok()) {
      bad_.push_back({batch_.samples_[i], item.bad});
      if (rules.on_bad != config::OnBadAudio::kZero) continue;
      const double d = rules.dataset->duration_s(batch_.samples_[i].sample);
      const int64_t wanted =
          std::isnan(d) ? rules.min_samples : static_cast<int64_t>(d * batch_.sample_rate_);
      const int64_t n = std::clamp<int64_t>(wanted, std::max<int64_t>(1, rules.min_samples),
                                            std::max<int64_t>(stride_, 1));
      item.bad = ok_status();
      item.energy = 0.0;
      item.figures.samples = 0;
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
      batch_.samples_[kept] = batch_.samples_[i];
      std::swap(items_[kept], items_[i]);
    }
    ++kept;
  }
  items_.resize(kept);
  batch_.samples_.resize(kept);
}

Status BatchBuilder::mix(const BuildRules& rules, BuildThread& thread) {
  const size_t n = items_.size();
  PhiloxMixDraws draws(rules.seed, batch_.epoch_);
  inputs_.resize(n);
  audio_rows_.resize(n);
  energies_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    Item& item = items_[i];
    inputs_[i] = {item.length, 0, batch_.samples_[i].position};
    // Known only now: the row was too long at first, or the batch has shrunk to one.
    if (rules.noise_rows && thread.noise != nullptr && !item.has_noise) {
      const MixNeeds needs = mix_needs(rules.augment, draws, n, inputs_[i]);
      if (needs.noise_samples > 0)
        AERIE_RETURN_IF_ERROR(read_noise(rules, i, needs.noise_samples, thread));
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
  MixPlan& plan = batch_.plan_;
  plan_mix(rules.augment, inputs_, draws, plan);
  for (MixSegment& segment : plan.segments)
    if (segment.source == MixSource::kNoise) segment.row = items_[segment.row].noise_row;
  const MixRows rows{inputs_, audio_rows_, noise_rows_, energies_};
  resolve_gains(rows, plan);
  batch_.audio_len_.resize(n);
  batch_.noise_len_.resize(n);
  batch_.noisy_len_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    batch_.audio_len_[i] = items_[i].length;
    batch_.noise_len_[i] = plan.items[i].noise_len;
    batch_.noisy_len_[i] = plan.items[i].noisy_len;
    if (rules.mix != MixPlace::kCpu) continue;
    add_segments(rows, plan, i, noisy_ + static_cast<int64_t>(i) * stride_);
  }
  if (rules.mix == MixPlace::kCpu && rules.want_noise) {
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
  } else if (rules.mix == MixPlace::kConsumer && !bad_.empty()) {
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

void BatchBuilder::list_arrays(const BuildRules& rules) {
  const int64_t rows = static_cast<int64_t>(items_.size());
  std::vector<HostArray>& arrays = batch_.arrays_;
  arrays.clear();
  const auto matrix = [&](std::string_view name, DType dtype, void* data, int64_t count) {
    arrays.push_back({name, dtype, {count, stride_, 0, 0}, 2, data});
  };
  const auto lengths = [&](std::string_view name, std::vector<int64_t>& values) {
    arrays.push_back({name, DType::kInt64, {rows, 0, 0, 0}, 1, values.data()});
  };
  if (audio16_ != nullptr)
    matrix("audio", DType::kInt16, audio16_, rows);
  else
    matrix("audio", DType::kFloat32, audio_, rows);
  lengths("audio_len", batch_.audio_len_);
  if (noisy_ != nullptr) matrix("noisy_audio", DType::kFloat32, noisy_, rows);
  lengths("noisy_audio_len", batch_.noisy_len_);
  if (rules.mix == MixPlace::kConsumer && rules.noise_rows) {
    // Only rows somebody needs; the rows of samples that turned out bad are among them.
    int64_t count = 0;
    for (const Item& item : items_)
      if (item.has_noise) count = std::max<int64_t>(count, item.noise_row + 1);
    if (noise16_ != nullptr)
      matrix("noise", DType::kInt16, noise16_, count);
    else
      matrix("noise", DType::kFloat32, noise_, count);
  } else if (rules.want_noise) {
    matrix("noise", DType::kFloat32, noise_, rows);
  }
  lengths("noise_len", batch_.noise_len_);
}

Status BatchBuilder::finish(const BuildRules& rules, BuildThread& thread) {
  // The machine's trouble, not the recording's: which samples a run sees must not depend on it.
  for (size_t i = 0; i < items_.size(); ++i)
    if (is_passing(items_[i].bad))
      return items_[i].bad.with_context(rules.dataset->describe(batch_.samples_[i].sample));
  place_spills(rules);
  if (rules.on_bad == config::OnBadAudio::kFail)
    for (size_t i = 0; i < items_.size(); ++i)
      if (!items_[i].bad.ok())
        return items_[i]
            .bad.with_context(rules.dataset->describe(batch_.samples_[i].sample))
            .with_hint("set aerie.on_bad_audio=skip to go on without such samples");
  drop_bad_rows(rules);
  batch_.mixed_ = rules.mix == MixPlace::kCpu;
  batch_.padded_length_ = 0;
  batch_.sample_ids_.resize(items_.size());
  batch_.source_samples_ = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    batch_.source_samples_ += items_[i].figures.samples;
    batch_.padded_length_ = std::max(batch_.padded_length_, items_[i].length);
    batch_.sample_ids_[i] = rules.dataset->sample_id(batch_.samples_[i].sample);
  }
  AERIE_RETURN_IF_ERROR(mix(rules, thread));
  list_arrays(rules);
  block_.settle();
  return ok_status();
}

}  // namespace aerie::data
