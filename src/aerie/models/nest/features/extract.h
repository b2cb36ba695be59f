// Features of recordings from every layer of a trained encoder, into .npy files: what NeMo's
// scripts/ssl/extract_features.py does, with its arguments and outputs. Free of torch.
//
//   OUTPUT/<path with _>.npy   float32 [layers, d, frames], one per recording
//   OUTPUT/features.json       the input manifest with absolute audio paths and `feature_path`,
//   which
//                              is relative to this manifest
//
// The model is in eval mode: no dither, no dropout, no masking. Recordings are read whole, whatever
// duration and offset a manifest gives. One that cannot be read or encoded is reported, left out
// and does not stop the others. Every file appears whole or not at all; features.json comes last.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::features {

struct ExtractOptions {
  std::string model_path;  // see models/nest/restore.h
  std::string config;      // YAML, for weights that come without
  bool averaged = false;   // the averaged weights of a native checkpoint
  std::string input;       // manifest, folder or audio file
  std::string output;      // folder, made when absent
  std::string layers = "all";
  // NeMo from 3.1 on: the encoder's output follows the chosen layers.
  bool include_final_output = false;
  int64_t batch_size = 8;
  int64_t workers = 8;  // threads that read audio and write files
  std::string device = "auto";
  std::string type = "wav";  // extension, for a folder
  bool use_amp = false;
  std::string amp_dtype = "float16";  // or bfloat16
  std::string channel_selector;       // null, average, a number
};

struct BadRecording {
  std::string place;
  Status status;
};

struct ExtractReport {
  uint64_t num_recordings = 0;  // lines of the manifest, or files
  uint64_t num_files = 0;       // .npy files written; a path that is listed twice has one
  double audio_s = 0.0;
  int64_t num_layers = 0;  // first dimension of the files
  int64_t width = 0;       // second
  std::string manifest;    // features.json
  std::vector<BadRecording> bad;
};

// Stops between batches when a signal came (signals.h): kCancelled, files written so far stay.
Result<ExtractReport> extract_features(const ExtractOptions& options, Env& env = Env::real());

}  // namespace aerie::features
