// The sub-commands and what runs them.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace motley::cli {

// One sub-command. `parse` reads its arguments (what follows the command's name) and throws Error(usage);
// every rank does so and they agree on the result before anything starts. It returns the work, which is
// collective over the ranks.
struct Command {
  const char* name;     // "train", "data idx"
  const char* summary;  // one line for the list of commands
  std::string (*help)();
  void (*run)(const std::vector<std::string>& arguments, const comm::Communicator& world);
};

const std::vector<Command>& commands();

// The whole program: returns the exit code.
int main(int argc, char** argv);

// The commands, one file each.
std::string train_help();
void train(const std::vector<std::string>& arguments, const comm::Communicator& world);
std::string eval_help();
void eval(const std::vector<std::string>& arguments, const comm::Communicator& world);
std::string data_idx_help();
void data_idx(const std::vector<std::string>& arguments, const comm::Communicator& world);
std::string data_inspect_help();
void data_inspect(const std::vector<std::string>& arguments, const comm::Communicator& world);

}  // namespace motley::cli
