#include "cli/shared_options.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/log.h"

namespace motley::cli {
namespace {

// Name in HetSeq, name here.
const std::pair<const char*, const char*> aliases[] = {
    {"batch-size", "max-sentences"},
    {"learning-rate", "lr"},
    {"me", "max-epoch"},
    {"mu", "max-update"},
    {"wd", "weight-decay"},
    {"dadelta-weight-decay", "weight-decay"},
};

struct NotNeeded {
  const char* name;
  bool is_switch;
  const char* reason;
  const char* expected = "";
};

const NotNeeded not_needed[] = {
    {"distributed-world-size", false, "mpirun -n or srun says how many ranks there are"},
    {"distributed-rank", false, "mpirun or srun gives every process its rank"},
    {"distributed-init-method", false, "mpirun or srun connects the ranks"},
    {"distributed-backend", false, "the device decides it"},
    {"distributed-gpus", false, "every rank finds its own device"},
    {"distributed-no-spawn", true, "mpirun or srun starts the processes"},
    {"device-id", false, "every rank finds its own device"},
    {"local-rank", false, "every rank finds its own device"},
    {"num-workers", false, "one reader thread per rank stays a window ahead"},
    {"lr-scheduler", false, "nothing is trained"},
    {"fast-stat-sync", true, "losses and counts are always summed over ranks"},
    {"ddp-backend", false, "gradients are always summed in overlapping buckets"},
    {"find-unused-parameters", true, "every parameter takes part in every step"},
    {"fix-batches-to-gpus", true, "the order of the samples does not depend on the ranks"},
    {"max-sentences-valid", false, "validation runs in micro-batches of at most --max-sentences"},
    {"max-tokens-valid", false, "validation runs in micro-batches of at most --max-sentences"},
};

constexpr const char* fresh_run =
    "has no counterpart; expected --init-from, which begins a new run, with a fresh optimizer, with the "
    "parameters of another";

// Name, and what follows it in the sentence.
const std::pair<const char*, const char*> refused[] = {
    {"max-pred-length",
     "has no counterpart: every prediction that the data holds is used, and their number "
     "is --max-predictions-per-seq of motley data bert; leave it out"},
    {"max-tokens", "has no counterpart: a micro-batch is bounded by samples; expected --max-sentences"},
    {"required-batch-size-multiple",
     "has no counterpart: a batch has as many samples as --global-batch says, "
     "or --max-sentences and --update-freq; leave it out"},
    {"disable-validation", "is --validate-interval 0 here"},
    {"reset-dataloader", fresh_run},
    {"reset-lr-scheduler", fresh_run},
    {"reset-meters", fresh_run},
    {"reset-optimizer", fresh_run},
    {"optimizer-overrides",
     "has no counterpart: a run that continues uses the options that it is given; "
     "leave it out"},
    {"no-epoch-checkpoints", "is --keep-last-epochs 1 here, which keeps the newest and the best"},
    {"no-last-checkpoints",
     "has no counterpart: the newest checkpoint is always kept; expected --no-save to "
     "write none"},
    {"no-save-optimizer-state",
     "has no counterpart: a run continues from a checkpoint; motley export writes "
     "the parameters alone"},
    {"use-bmuf", "has no counterpart: gradients are summed over all ranks at every step; leave it out"},
    {"force-anneal", "has no counterpart; --total-num-update says when the decay of the rate ends"},
    {"fa", "has no counterpart; --total-num-update says when the decay of the rate ends"},
};

const char* const dynamic_masking_options[] = {"masked-lm-prob", "max-predictions-per-seq", "whole-word"};

}  // namespace

void add_data_options(OptionSet& set, train::DataOptions& options) {
  set.add("task", &options.task,
          "what to train: mnist, cifar10, cifar100, images (any HDF5 image set) or bert");
  set.add("data", &options.data,
          "directory with the HDF5 files; for BERT also files with commas between them");
  set.add("num-file", &options.num_file, "use the first this many shards of each subset; 0: all");
}

void add_model_options(OptionSet& set, train::ModelOptions& options) {
  set.add("config-file", &options.config_file,
          "bert_config.json; without it the config.json of the checkpoint, or of --init-from");
  set.add(
      "dict", &options.dict,
      "vocab.txt, for --masking dynamic, checkpoints, and a check that the data was made with it; without "
      "it the one beside that config.json");
  set.add("masking", &options.masking,
          "static: as the data is masked; dynamic: drawn anew every time a sample is used");
  set.add("masked-lm-prob", &options.masked_lm_prob, "dynamic masking: part of the tokens to predict");
  set.add("max-predictions-per-seq", &options.max_predictions,
          "dynamic masking: most tokens to predict; 0: --masked-lm-prob of the longest sequence, rounded up");
  set.add_switch("whole-word", &options.whole_word, "dynamic masking: all pieces of a word together");
}

void add_image_options(OptionSet& set, train::ImageOptions& options) {
  set.add("arch", &options.arch,
          "network, of those that motley train --help-archs lists; without it that of the checkpoint, or mnist for task "
          "mnist and resnet18 for the others");
  set.add("classes", &options.classes,
          "0: as the checkpoint, the task or the file of the images says, or as many as it has labels");
  set.add("mean", &options.mean,
          "of the pixels of each channel, scaled to [0, 1]; without it that of the checkpoint, the task or the file, or as "
          "found in the training images");
  set.add("deviation", &options.deviation, "likewise");
}

void add_batch_options(OptionSet& set, train::BatchOptions& options, bool training) {
  set.add("global-batch", &options.global_batch,
          "samples per step over all ranks; 0: max-sentences x update-freq x ranks");
  set.add("max-sentences", &options.max_sentences, "largest micro-batch of one rank");
  set.add("policy", &options.policy,
          training ? "how the batch is divided: auto (by measured cost, so that all ranks finish together), "
                     "static (by --weights), sync (equally), dp or edp (once per epoch by measured speed, as "
                     "published; dp takes the plain mean of the ranks' mean gradients, which is not the "
                     "gradient of the batch; edp weights them by share, which for bert is not either)"
                   : "how the batch is divided: auto (as the run that made the checkpoint, if it measured as "
                     "many ranks), static (by --weights) or sync (equally)");
  set.add("weights", &options.weights,
          training ? "proportions of the shares, one per rank: 1,1,2,4; 0: no share; for auto, dp and edp "
                     "those to begin with"
                   : "proportions of the shares, one per rank: 1,1,2,4; 0: no share");
  set.add("window", &options.window, "steps that are planned and read at once");
}

void add_device_options(OptionSet& set, SharedOptions& shared) {
  set.add("device", &shared.device,
          "cpu, cuda (one GPU per rank of a host), or auto: a GPU where a rank sees one; ranks may differ");
  set.add("precision", &shared.precision,
          "fp32; bf16: activations and products in bfloat16, parameters and sums in float32; fp16: the same in "
          "float16, on GPUs");
  set.add_switch("deterministic", &shared.deterministic,
                 "GPUs use only what gives the same bits in every run; CPUs always do");
  set.add_switch("cpu", &shared.cpu, "the same as --device cpu");
  set.add("threads", &shared.threads, "threads per rank; 0: the rank's part of the processors it may use");
  set.add("slow", &shared.slow,
          "ranks that play a slower device: 1:3x (3 times as long), 1:+100ms (per batch), 2:gamma(2,50ms), "
          "3:exp(80ms), "
          "1:3x@200-400 (in these steps); several with commas");
  set.add("memory-limit", &shared.memory_limit,
          "ranks that pretend to have less memory: 1:600M, or 1:600M@100 (from step 100 on); several with "
          "commas");
  set.add("timeout", &shared.timeout_s, "seconds after which a rank that does not answer ends the run");
}

void add_hetseq_options(OptionSet& set) {
  for (const auto& [other, name] : aliases) {
    if (set.has(name)) set.alias(other, name);
  }
  for (const NotNeeded& option : not_needed) {
    if (!set.has(option.name)) set.ignore(option.name, option.is_switch, option.reason, option.expected);
  }
  for (const auto& [name, rest] : refused) set.refuse(name, fmt::format("--{} {}", name, rest));
}

void warn_of_ignored(const OptionSet& set, int rank) {
  const std::string ignored = set.ignored();
  if (rank == 0 && !ignored.empty()) log::warn("options that are not needed were left out: {}", ignored);
}

bool masking_uses(const train::ModelOptions& options, const std::string& name) {
  return options.masking == "dynamic" ||
         std::find(std::begin(dynamic_masking_options), std::end(dynamic_masking_options), name) ==
             std::end(dynamic_masking_options);
}

void check_masking_options(const OptionSet& set, const train::ModelOptions& options) {
  for (const std::string name : dynamic_masking_options) {
    // A switch may be given to say no; check_options() looks at it.
    if (name != "whole-word" && set.given(name) && !masking_uses(options, name))
      fail(ExitCode::usage, "--{} is for --masking dynamic; the data is masked already", name);
  }
}

void apply_shared(const SharedOptions& shared, train::TrainOptions& options) {
  if (shared.adam_betas.size() != 2) {
    fail(ExitCode::usage, "--adam-betas has {} number(s); expected 2", shared.adam_betas.size());
  }
  options.optimizer.adam_beta1 = shared.adam_betas[0];
  options.optimizer.adam_beta2 = shared.adam_betas[1];
  if (shared.cpu && shared.device == "cuda")
    fail(ExitCode::usage, "--cpu and --device cuda contradict each other");
  options.device = shared.cpu ? "cpu" : shared.device;
  options.model.precision = shared.precision;
  options.threads = shared.threads;
  options.slow = shared.slow;
  options.memory_limit = shared.memory_limit;
  options.timeout_s = shared.timeout_s;
}

}  // namespace motley::cli
