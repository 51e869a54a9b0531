// Everything that a training run is told, as parsed from the command line (src/cli/train.cc) and written to
// config.ini. Names and meanings are HetSeq's where it has the option.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"

namespace motley::train {

struct OptimizerOptions {
  std::string name = "adadelta";  // sgd, adam, adamw, lamb, adadelta
  double momentum = 0.9;
  double dampening = 0;
  bool nesterov = false;
  double adam_beta1 = 0.9, adam_beta2 = 0.999, adam_eps = 1e-8;
  double adadelta_rho = 0.9, adadelta_eps = 1e-6;
  double weight_decay = 0;
  double clip_norm = 25;  // 0: no clipping
};

struct ScheduleOptions {
  std::vector<double> lr = {0.25};       // one per epoch, the last for all further ones
  std::string scheduler = "polynomial";  // polynomial, cosine, step
  std::string unit = "epoch";            // of cosine and step: epoch, update
  std::int64_t epochs = 0;               // that cosine takes, by epochs
  std::int64_t step_size = 0;  // step: units between two falls of the rate; 0: milestones say when it falls
  std::vector<std::int64_t> milestones;
  double gamma = 0.1;  // step: factor of a fall
  std::int64_t warmup_updates = 0;
  std::int64_t total_num_update = 1000000;  // polynomial, and cosine by updates
  double end_learning_rate = 0;             // polynomial, cosine
  double power = 1;                         // polynomial
  double min_lr = -1;                       // stop when the rate falls to this; negative: never
};

struct BatchOptions {
  std::int64_t max_sentences = 64;              // largest micro-batch of one rank
  bool max_sentences_given = false;             // the default does not hold for shares that cannot be cut
  std::int64_t global_batch = 0;                // 0: max_sentences * update_freq * ranks
  std::vector<std::int64_t> update_freq = {1};  // one per epoch, the last for all further ones
  std::string policy = "auto";                  // sync, static, dp, edp, auto
  std::string weights;                          // for static; for dp, edp and auto what they begin with
  std::int64_t window = 16;                     // steps that are planned and read at once
  std::int64_t local_steps = 1;  // ranks step alone and average parameters every this many steps
};

struct DataOptions {
  std::string task = "mnist";
  std::string data;  // directory with <subset>.h5; for BERT also shards, or a list of them
  std::string train_subset = "train";
  std::vector<std::string> valid_subsets = {"valid"};
  bool valid_subset_given = false;     // the default may be absent; a named one may not
  std::int64_t validate_interval = 1;  // epochs; 0: never
  std::int64_t curriculum = 0;         // epochs that are not shuffled
  std::int64_t num_file = 0;           // the first this many shards of a subset; 0: all
  std::int64_t shuffle_pool = 65536;   // rows of shards that are shuffled together
};

// What the network is and how it is computed; of use to task bert alone, but for the precision.
struct ModelOptions {
  std::string config_file;         // bert_config.json; empty: config.json beside the parameters to begin with
  std::string dict;                // vocab.txt
  std::string precision = "fp32";  // fp32, bf16, fp16
  double loss_scale = 0;           // for fp16; 0: by itself
  bool recompute = false;          // activations, in the backward pass, instead of keeping them
  std::string masking = "static";  // static: as the data has it; dynamic: drawn anew for every epoch
  double masked_lm_prob = 0.15;    // for dynamic masking, as are the following
  std::int64_t max_predictions = 0;  // per sequence; 0: masked_lm_prob of its length, rounded up
  bool whole_word = false;

  // Of activations and products.
  DType compute() const;
};

// What is trained on images, of use to all tasks but bert.
struct ImageOptions {
  std::string arch;  // of models/image_archs.h; empty: that of the checkpoint to begin with, or the task's
  std::int64_t classes = 0;             // 0: those of the checkpoint, the task or the training data
  std::vector<double> mean, deviation;  // per channel, of pixels scaled to [0, 1]; empty: likewise
  std::int64_t crop_padding = 0;        // pixels; 0: images are not cropped
  bool flip = false;                    // mirror half of the images
  bool sync_bn = true;  // batch norm's statistics are those of the global batch, not of the rows at hand
};

struct SaveOptions {
  std::string save_dir = "checkpoints";
  std::string restore_file;                // empty: the newest good checkpoint of save_dir
  std::int64_t save_interval = 1;          // epochs; 0: only at the end
  std::int64_t save_interval_updates = 0;  // steps; 0: never
  std::int64_t keep_interval_updates = -1, keep_last_epochs = -1;
  bool no_save = false;
  bool restart_from_scratch = false;   // begin anew when no checkpoint of save_dir is good
  bool allow_changed_options = false;  // continue a run though the mathematics are others
  std::string init_from;  // a new run begins with the parameters of this checkpoint or model directory
  std::string best_metric = "loss";
  bool maximize_best_metric = false;
};

struct GuardOptions {
  std::int64_t max_skips = 5;               // steps in a row that are not finite end the run
  std::int64_t verify_every = 1000;         // steps between comparisons of the ranks' parameters; 0: never
  std::string stop_after;                   // save and stop after so long; empty: never
  std::string checkpoint_deadline = "60s";  // from a signal to the end of the process
};

struct ReportOptions {
  std::int64_t log_interval = 50;
  std::string log_format = "simple";
  bool no_progress_bar = false;
};

struct TrainOptions {
  DataOptions data;
  ModelOptions model;
  ImageOptions image;
  BatchOptions batch;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  SaveOptions save;
  GuardOptions guard;
  ReportOptions report;
  std::int64_t max_epoch = 0, max_update = 0;  // 0: no limit; one of them is needed
  std::uint64_t seed = 19940802;
  std::string device = "auto";  // auto, cpu, cuda
  int threads = 0;              // OpenMP threads per rank; 0: the rank's share of its processors
  bool deterministic = false;   // on GPUs, only what gives the same bits in every run
  bool cuda_graph = true;       // GPUs run micro-batches as CUDA graphs
  bool cuda_graph_given = false;
  std::string slow;             // --slow
  std::string memory_limit;     // --memory-limit
  double bucket_cap_mb = 25;
  std::string allreduce_dtype = "fp32";  // fp32, bf16: of gradients while they are summed over ranks
  double timeout_s = 600;
  // Every option as it was used, for config.ini and trainer.json: (name, value) in the order of the help.
  std::vector<std::pair<std::string, std::string>> as_used;
};

// Whether an option was given, by its name on the command line.
using Given = std::function<bool(const std::string& option)>;
// Gives the options that were not given the values that follow from the task and from other options:
//   HetSeq's optimizers, adam for task bert and adadelta for mnist;
//   for the other image tasks the recipe of the dynamic-partition experiments: batch 256, SGD at rate 0.1 with Nesterov
//   momentum 0.9 and weight decay 5e-4, no clipping, a cosine schedule, the most accurate model as the best; for the two of
//   CIFAR crops with 4 pixels of padding and mirroring besides;
//   what a cosine ends with: --max-epoch, or --max-update;
//   batch norm over the rows at hand for --local-steps and the published policies.
// Error(usage) when nothing says where a cosine ends, or when these are to have batch norm over global batches.
void fill_in(TrainOptions& options, const Given& given);

// Which schedulers use an option, as for optimizers below.
std::string schedulers_of(const std::string& schedule_option);
bool schedule_uses(const ScheduleOptions& schedule, const std::string& option);

// Which optimizers use an option: "sgd", or "adam, adamw or lamb"; empty: every one.
std::string users_of(const std::string& optimizer_option);
bool optimizer_uses(const std::string& optimizer, const std::string& option);

// Error(usage) when an option of images was given to another task.
void expect_images(const std::string& task, const char* option, bool given);

// Checks what single options cannot know of each other; throws Error(usage) with one sentence.
void check_options(const TrainOptions& options, int ranks);

// B of an epoch (counted from 1) on `ranks` ranks: --global-batch, or HetSeq's max-sentences x update-freq x
// ranks.
std::int64_t global_batch(const BatchOptions& options, int epoch, int ranks);

}  // namespace motley::train
