#include <algorithm>

#include "train/tasks/bert_task.h"
#include "train/tasks/image_task.h"

namespace motley::train {

std::vector<std::string> task_names() {
  return {"mnist", "cifar10", "cifar100", "images", "bert"};
}

std::unique_ptr<Task> make_task(const TrainOptions& options) {
  const std::string& name = options.data.task;
  const std::vector<std::string> names = task_names();
  if (std::find(names.begin(), names.end(), name) != names.end())
    return name == "bert" ? make_bert_task(options) : make_image_task(options);
  std::string list;
  for (const std::string& known : names) list += (list.empty() ? "" : ", ") + known;
  fail(ExitCode::usage, "there is no task \"{}\"; expected one of: {}", name, list);
}

}  // namespace motley::train
