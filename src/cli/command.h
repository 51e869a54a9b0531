// The sub-commands and what runs them.
#pragma once

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi.h"
#include "core/error.h"

namespace motley::cli {

// What a command runs in.
struct Context {
  const comm::Communicator& world;
  comm::MpiSession& session;
};

// One sub-command. `run` is given the arguments behind the command's name and is collective over the ranks; it
// reads its options inside comm::agree, so that every rank knows when they are wrong before anything starts.
struct Command {
  const char* name;     // "train", "data idx"
  const char* summary;  // one line for the list of commands
  std::string (*help)();
  void (*run)(const std::vector<std::string>& arguments, const Context& context);
};

const std::vector<Command>& commands();

// The whole program: returns the exit code.
int main(int argc, char** argv);

// The commands, one file each.
std::string train_help();
void train(const std::vector<std::string>& arguments, const Context& context);
std::string eval_help();
void eval(const std::vector<std::string>& arguments, const Context& context);
std::string plan_help();
void plan(const std::vector<std::string>& arguments, const Context& context);
std::string probe_help();
void probe(const std::vector<std::string>& arguments, const Context& context);
std::string import_help();
void import_model(const std::vector<std::string>& arguments, const Context& context);
std::string export_help();
void export_model(const std::vector<std::string>& arguments, const Context& context);
std::string data_bert_help();
void data_bert(const std::vector<std::string>& arguments, const Context& context);
std::string data_idx_help();
void data_idx(const std::vector<std::string>& arguments, const Context& context);
std::string data_cifar_help();
void data_cifar(const std::vector<std::string>& arguments, const Context& context);
std::string data_synth_help();
void data_synth(const std::vector<std::string>& arguments, const Context& context);
std::string data_pack_help();
void data_pack(const std::vector<std::string>& arguments, const Context& context);
std::string data_vocab_help();
void data_vocab(const std::vector<std::string>& arguments, const Context& context);
std::string data_inspect_help();
void data_inspect(const std::vector<std::string>& arguments, const Context& context);

}  // namespace motley::cli
