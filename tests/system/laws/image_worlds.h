// Worlds that train the mnist network on a small set of images that can be learned.
#pragma once

#include <string>

#include "system/laws/worlds.h"

namespace motley::train {

constexpr unsigned data_seed = 17;
constexpr int samples = 700;

class ImageWorlds : public Worlds {
 protected:
  ImageWorlds() {
    if (world_.rank() == 0) test::write_learnable_images(path_ + "/train.h5", samples, data_seed);
    world_.barrier("the data");
  }

  TrainOptions image_options(const std::string& run, std::int64_t batch, std::int64_t steps) const {
    TrainOptions options;
    options.data.data = path_;
    options.save.save_dir = path_ + "/" + run;
    options.save.save_interval = 0;
    options.batch.global_batch = batch;
    options.batch.max_sentences = 8;
    options.batch.policy = "sync";
    options.batch.window = 4;
    options.schedule.lr = {1.0};
    options.max_update = steps;
    options.report.log_format = "none";
    options.threads = 1;
    options.seed = 3;
    options.bucket_cap_mb = 0.25;  // several buckets
    return options;
  }
};

}  // namespace motley::train
