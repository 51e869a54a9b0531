#include "models/mnist_net.h"
#include "train/tasks/bert_task.h"
#include "train/tasks/image_task.h"

namespace motley::train {

std::vector<std::string> task_names() {
  return {"mnist", "bert"};
}

std::unique_ptr<Task> make_task(const TrainOptions& options) {
  const std::string& name = options.data.task;
  if (name == "mnist") {
    // Mean and deviation of MNIST, as HetSeq normalises.
    return std::make_unique<ImageTask>("mnist", make_mnist_net(), std::vector<float>{0.1307f},
                                       std::vector<float>{0.3081f});
  }
  if (name == "bert") return make_bert_task(options);
  std::string list;
  for (const std::string& known : task_names()) list += (list.empty() ? "" : ", ") + known;
  fail(ExitCode::usage, "there is no task \"{}\"; expected one of: {}", name, list);
}

}  // namespace motley::train
