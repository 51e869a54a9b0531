// Worlds that train a tiny BERT on gzip shards of unequal length.
#pragma once

#include <string>
#include <vector>

#include "support/bert_shards.h"
#include "system/laws/worlds.h"

namespace motley::train {

constexpr unsigned bert_data_seed = 23;
constexpr std::int64_t bert_batch = 30;
inline const std::vector<int> shard_rows{150, 97, 203};

class BertWorlds : public Worlds {
 protected:
  BertWorlds() {
    if (world_.rank() == 0) {
      test::write_learnable_bert_shards(path_ + "/masked", {shard_rows}, bert_data_seed);
      test::write_learnable_bert_shards(path_ + "/unmasked", {shard_rows, false}, bert_data_seed);
      test::write_bert_config(path_ + "/bert_config.json");
      test::write_bert_vocabulary(path_ + "/vocab.txt");
    }
    world_.barrier("the data");
  }

  TrainOptions bert_options(const std::string& run, std::int64_t steps) const {
    TrainOptions options;
    options.data.task = "bert";
    options.data.data = path_ + "/masked";
    options.data.shuffle_pool = 100;
    options.model.config_file = path_ + "/bert_config.json";
    options.save.save_dir = path_ + "/" + run;
    options.save.save_interval = 0;
    options.batch.global_batch = bert_batch;
    options.batch.max_sentences = 8;
    options.batch.policy = "sync";
    options.batch.window = 4;
    options.optimizer.name = "adamw";
    options.optimizer.weight_decay = 0.01;
    options.optimizer.adam_eps = 1e-6;
    options.optimizer.clip_norm = 1;
    options.schedule.lr = {3e-3};
    options.schedule.warmup_updates = 10;
    options.max_update = steps;
    options.report.log_format = "none";
    options.threads = 1;
    options.seed = 3;
    options.bucket_cap_mb = 0.02;  // several buckets
    return options;
  }
};

}  // namespace motley::train
