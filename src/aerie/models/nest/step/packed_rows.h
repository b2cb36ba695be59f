// How many packed rows a batch is given in a step: plain functions of sizes, asked before a
// NestStep is made.
#pragma once

#include <vector>

#include "aerie/models/nest/step/nest_step.h"

namespace aerie::kernels {

// Rows that an item of so many valid encoder frames must have: padding counts where the convolution
// reaches over the end, and where masking does.
int encoder_rows(const NestStepConfig& config, int valid);
// What a batch that needs so many rows is given, so that batches share graphs: about two
// percent of the padded batch more at most. GEMMs like round numbers, too.
int shared_rows(int needed, int padded);
// The encoder's rows of a batch: as laid out for it, or all of the padded one.
int step_rows(const NestStepConfig& config);
// How many rows each item of a batch has, all of config.rows together; what is more than needed is
// padding of the first items that have room for it.
std::vector<int> item_rows(const NestStepConfig& config, const std::vector<int>& valid);
// Room for that many frames in the loss, shared in the same way: half the rows (with usual settings
// a third of the frames is in the loss), or all of them.
int shared_room(int masked, int rows);
// How many frames of a batch of such features enter the loss, computed on the host.
int masked_rows(const NestStepConfig& config, const std::vector<int32_t>& frames,
                const RandomState& random);

// The rows and that room (NestStepConfig::rows, chosen) of a batch whose items have so many valid
// feature frames.
struct PackedSize {
  int rows, chosen;
};
PackedSize packed_size(const NestStepConfig& config, const std::vector<int32_t>& frames,
                       const RandomState& random);

}  // namespace aerie::kernels
