#include "cli/shared_options.h"

#include "core/error.h"

namespace motley::cli {

void add_data_options(OptionSet& set, train::DataOptions& options) {
  set.add("task", &options.task, "what to train: mnist or bert");
  set.add("data", &options.data,
          "directory with the HDF5 files; for BERT also files with commas between them");
  set.add("num-file", &options.num_file, "use the first this many shards of each subset; 0: all");
}

void add_model_options(OptionSet& set, train::ModelOptions& options) {
  set.add("config-file", &options.config_file,
          "bert_config.json; without it the config.json of the checkpoint, or of --init-from");
  set.add("dict", &options.dict, "vocab.txt; goes into checkpoints, and --masking dynamic needs it");
  set.add("precision", &options.precision,
          "fp32, or bf16: activations and products in bfloat16, parameters and sums in float32");
  set.add("masking", &options.masking,
          "static: as the data is masked; dynamic: drawn anew every time a sample is used");
  set.add("masked-lm-prob", &options.masked_lm_prob, "dynamic masking: part of the tokens to predict");
  set.add("max-predictions-per-seq", &options.max_predictions,
          "dynamic masking: most tokens to predict; 0: --masked-lm-prob of the longest sequence, rounded up");
  set.add_switch("whole-word", &options.whole_word, "dynamic masking: all pieces of a word together");
}

void add_batch_options(OptionSet& set, train::BatchOptions& options) {
  set.add("global-batch", &options.global_batch,
          "samples per step over all ranks; 0: max-sentences x update-freq x ranks");
  set.add("max-sentences", &options.max_sentences, "largest micro-batch of one rank");
  set.add("policy", &options.policy, "how slots are shared out: sync (equally) or static (by --weights)");
  set.add("weights", &options.weights, "proportions of the shares, one per rank: 1,1,2,4; 0: no share");
  set.add("window", &options.window, "steps that are planned and read at once");
}

void add_device_options(OptionSet& set, SharedOptions& shared) {
  set.add("device", &shared.device, "auto, cpu or cuda");
  set.add_switch("cpu", &shared.cpu, "the same as --device cpu");
  set.add("threads", &shared.threads, "threads per rank; 0: the rank's part of the processors it may use");
  set.add("slow", &shared.slow,
          "ranks that play a slower device: 1:3x takes 3 times as long; several with commas");
  set.add("timeout", &shared.timeout_s, "seconds after which a rank that does not answer ends the run");
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
  options.threads = shared.threads;
  options.slow = shared.slow;
  options.timeout_s = shared.timeout_s;
}

}  // namespace motley::cli
