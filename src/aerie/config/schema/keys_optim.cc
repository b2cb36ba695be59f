// Rows of `model.optim` and `model.optim.sched`. Which of them an optimizer or a schedule takes is
// decided by its name (checks_optim.cc): an argument of another one is an error, as in NeMo.
#include "aerie/config/schema/key_table.h"

namespace aerie::config {
namespace {

constexpr KeyStatus kWorks = KeyStatus::kWorks;
constexpr KeyStatus kNoEffect = KeyStatus::kNoEffect;

constexpr KeySpec kOptim[] = {
    {"model.optim", "map|null", "", "", "", kWorks, "The optimizer."},
    {"model.optim.name", "str|null", "adam", "",
     "adamw|adam|sgd|novograd|adadelta|adamax|adagrad|rmsprop|rprop|adafactor|adan|lamb|fused_adam|"
     "distributed_fused_adam|mcore_distributed_optim",
     kWorks, "The optimizer.", "built in are adamw, adam, sgd and novograd",
     "adadelta|adamax|adagrad|rmsprop|rprop|adafactor|adan|lamb|fused_adam|distributed_fused_adam|"
     "mcore_distributed_optim"},
    {"model.optim._target_", "str|null", "null", "", "", kWorks,
     "The optimizer's class instead of its name: torch.optim.AdamW and so on."},
    {"model.optim.lr", "float", "0.001", ">=0", "", kWorks,
     "Learning rate. NoamAnnealing multiplies it by d_model^-0.5."},
    {"model.optim.betas", "list[float]", "[0.9, 0.999]", "[0,1)", "", kWorks,
     "Decay of the moments; novograd's default is [0.95, 0.98]."},
    {"model.optim.eps", "float", "1e-08", ">=0", "", kWorks, "Floor of the denominator."},
    {"model.optim.weight_decay", "float", "", ">=0", "", kWorks,
     "Absent: 0.01 for adamw, else 0. Applies to every parameter, as in NeMo, but see "
     "aerie.no_weight_decay."},
    {"model.optim.amsgrad", "bool", "false", "", "", kWorks, "adamw, adam, novograd: AMSGrad."},
    {"model.optim.maximize", "bool", "false", "", "", kWorks, "Ascend instead."},
    {"model.optim.foreach", "bool|null", "null", "", "", kNoEffect,
     "How torch loops over tensors; the same numbers."},
    {"model.optim.fused", "bool|null", "null", "", "", kNoEffect,
     "How torch loops over tensors; the same numbers."},
    {"model.optim.capturable", "bool", "false", "", "", kNoEffect, "A detail of CUDA graphs."},
    {"model.optim.differentiable", "bool", "false", "", "", kNoEffect, "A detail of autograd."},
    {"model.optim.momentum", "float", "0", ">=0", "", kWorks, "sgd."},
    {"model.optim.dampening", "float", "0", "", "", kWorks, "sgd."},
    {"model.optim.nesterov", "bool", "false", "", "", kWorks, "sgd."},
    {"model.optim.grad_averaging", "bool", "false", "", "", kWorks, "novograd."},
    {"model.optim.luc", "bool", "false", "", "", kWorks, "novograd: bound of the update."},
    {"model.optim.luc_trust", "float", "0.001", ">0", "", kWorks, "novograd."},
    {"model.optim.luc_eps", "float", "1e-08", ">=0", "", kWorks, "novograd."},
    {"model.optim.args", "map|null", "null", "", "", kWorks,
     "NeMo's older style: `{name: auto, params: {betas: ...}}`. With it an absent weight_decay is "
     "0."},
    {"model.optim.args.name", "str|null", "auto", "", "auto|*_params", kWorks,
     "`auto`: the optimizer's own."},
    {"model.optim.args.params", "map|null", "null", "", "", kWorks, "The arguments."},
    {"model.optim.args.params.*", "any", "", "", "", kWorks,
     "Any argument of model.optim; the same rules."},

    {"model.optim.sched", "map|null", "null", "", "", kWorks,
     "The learning-rate schedule; null or absent: constant."},
    {"model.optim.sched.name", "str", kRequired, "",
     "WarmupPolicy|WarmupHoldPolicy|SquareAnnealing|SquareRootAnnealing|CosineAnnealing|"
     "NoamAnnealing|NoamHoldAnnealing|WarmupHoldAnnealOneMinusSquareRoot|WarmupHoldAnnealLinear|"
     "WarmupAnnealing|InverseSquareRootAnnealing|T5InverseSquareRootAnnealing|"
     "PolynomialDecayAnnealing|PolynomialHoldDecayAnnealing|StepLR|ExponentialLR|"
     "ReduceLROnPlateau|CyclicLR",
     kWorks, "The schedule."},
    {"model.optim.sched.max_steps", "int|null", "null", ">=-1", "", kWorks,
     "Length of the schedule where trainer.max_steps is not given; -1: no schedule."},
    {"model.optim.sched.warmup_steps", "int|null", "null", ">=0", "", kWorks,
     "Optimizer steps of warm-up."},
    {"model.optim.sched.warmup_ratio", "float|null", "null", "[0,1]", "", kWorks,
     "Warm-up as a share of max_steps; not together with warmup_steps."},
    {"model.optim.sched.hold_steps", "int|null", "null", ">=0", "", kWorks,
     "Steps at the full rate after warm-up (Hold schedules)."},
    {"model.optim.sched.hold_ratio", "float|null", "null", "[0,1]", "", kWorks,
     "The same as a share of max_steps."},
    {"model.optim.sched.constant_steps", "int|null", "null", ">=0", "", kWorks,
     "CosineAnnealing, T5InverseSquareRootAnnealing: steps at a constant rate."},
    {"model.optim.sched.constant_ratio", "float|null", "null", "[0,1]", "", kWorks,
     "The same as a share of max_steps."},
    {"model.optim.sched.min_lr", "float", "0.0", ">=0", "", kWorks,
     "Floor of the rate; SquareAnnealing's default is 1e-5."},
    {"model.optim.sched.d_model", "int", "", ">=1", "", kWorks,
     "NoamAnnealing: the width that scales the rate; required there."},
    {"model.optim.sched.decay_rate", "float", "0.5", ">=0", "", kWorks, "NoamHoldAnnealing."},
    {"model.optim.sched.power", "float", "1.0", "", "", kWorks, "Polynomial schedules."},
    {"model.optim.sched.cycle", "bool", "false", "", "", kWorks, "Polynomial schedules."},
    {"model.optim.sched.last_epoch", "int", "-1", "", "", kNoEffect,
     "A resumed run finds its own step."},
    {"model.optim.sched.step_size", "int", "1", ">=1", "", kWorks, "StepLR: steps between drops."},
    {"model.optim.sched.gamma", "float", "", ">0", "", kWorks,
     "StepLR (0.1), ExponentialLR (required), CyclicLR (1.0)."},
    {"model.optim.sched.mode", "str", "", "", "min|max|triangular|triangular2|exp_range", kWorks,
     "ReduceLROnPlateau: min (default) or max; CyclicLR: triangular (default), ..."},
    {"model.optim.sched.factor", "float", "0.1", "(0,1)", "", kWorks, "ReduceLROnPlateau."},
    {"model.optim.sched.patience", "int", "10", ">=0", "", kWorks, "ReduceLROnPlateau."},
    {"model.optim.sched.threshold", "float", "0.0001", ">=0", "", kWorks, "ReduceLROnPlateau."},
    {"model.optim.sched.threshold_mode", "str", "rel", "", "rel|abs", kWorks, "ReduceLROnPlateau."},
    {"model.optim.sched.cooldown", "int", "0", ">=0", "", kWorks, "ReduceLROnPlateau."},
    {"model.optim.sched.eps", "float", "1e-08", ">=0", "", kWorks, "ReduceLROnPlateau."},
    {"model.optim.sched.verbose", "bool|str", "false", "", "", kNoEffect, "Deprecated in torch."},
    {"model.optim.sched.base_lr", "float", "0.001", ">=0", "", kWorks, "CyclicLR."},
    {"model.optim.sched.max_lr", "float", "0.1", ">=0", "", kWorks, "CyclicLR."},
    {"model.optim.sched.step_size_up", "int", "2000", ">=1", "", kWorks, "CyclicLR."},
    {"model.optim.sched.step_size_down", "int|null", "null", ">=1", "", kWorks, "CyclicLR."},
    {"model.optim.sched.scale_mode", "str", "cycle", "", "cycle|iterations", kWorks, "CyclicLR."},
    {"model.optim.sched.cycle_momentum", "bool", "true", "", "", kWorks, "CyclicLR."},
    {"model.optim.sched.base_momentum", "float", "0.8", ">=0", "", kWorks, "CyclicLR."},
    {"model.optim.sched.max_momentum", "float", "0.9", ">=0", "", kWorks, "CyclicLR."},
    {"model.optim.sched.monitor", "str|null", "loss", "", "", kWorks,
     "What ReduceLROnPlateau watches; `loss` is the training loss."},
    {"model.optim.sched.reduce_on_plateau", "bool", "false", "", "", kNoEffect,
     "Follows from the schedule's name."},
    {"model.optim.sched.iters_per_batch", "any", "null", "", "", kNoEffect, "Computed."},
    {"model.optim.sched.t_max_epochs", "any", "null", "", "", kNoEffect, "Computed."},
    {"model.optim.sched.t_accumulate_grad_batches", "any", "null", "", "", kNoEffect, "Computed."},
    {"model.optim.sched.t_limit_train_batches", "any", "null", "", "", kNoEffect, "Computed."},
    {"model.optim.sched.t_num_workers", "any", "null", "", "", kNoEffect, "Computed."},
    {"model.optim.sched.args", "map|null", "null", "", "", kWorks,
     "NeMo's older style: `{name: auto, params: {warmup_steps: ...}}`."},
    {"model.optim.sched.args.name", "str|null", "auto", "", "auto|*Params", kWorks,
     "`auto`: the schedule's own."},
    {"model.optim.sched.args.params", "map|null", "null", "", "", kWorks, "The arguments."},
    {"model.optim.sched.args.params.*", "any", "", "", "", kWorks,
     "Any argument of model.optim.sched; the same rules."},
};

}  // namespace

std::span<const KeySpec> optim_keys() {
  return kOptim;
}

}  // namespace aerie::config
