#include "cli/command.h"

#include <csignal>

#include <cstdio>
#include <optional>

#include "cli/archs.h"
#include "cli/ending.h"
#include "cli/option_set.h"
#include "comm/agree.h"
#include "comm/mpi.h"
#include "core/log.h"
#include "core/nearest_word.h"

namespace motley::cli {
namespace {

constexpr const char* version = MOTLEY_VERSION;

std::string overview() {
  std::string text =
      "motley: data-parallel training on whatever mix of machines there is\n\n"
      "usage: mpirun -n RANKS motley COMMAND [OPTIONS]\n\ncommands:\n";
  for (const Command& command : commands()) text += fmt::format("  {:14}{}\n", command.name, command.summary);
  text +=
      "\nmotley COMMAND --help lists the options of a command.\n"
      "exit codes: 0 done, 2 usage, 3 input data, 4 checkpoint, 5 communication, 6 device, 70 internal, "
      "75 stopped after saving\n";
  return text;
}

// The command that the arguments start with, and how many words its name has.
struct Match {
  const Command* command;
  std::size_t words;
};

std::optional<Match> match(const std::vector<std::string>& arguments) {
  for (const Command& command : commands()) {
    const std::string name = command.name;
    const std::size_t space = name.find(' ');
    if (space == std::string::npos) {
      if (!arguments.empty() && arguments[0] == name) return Match{&command, 1};
    } else if (arguments.size() >= 2 && arguments[0] == name.substr(0, space) &&
               arguments[1] == name.substr(space + 1)) {
      return Match{&command, 2};
    }
  }
  return std::nullopt;
}

[[noreturn]] void fail_unknown_command(const std::vector<std::string>& arguments) {
  if (arguments.empty()) fail(ExitCode::usage, "no command was given; motley --help lists them");
  std::vector<std::string> names;
  for (const Command& command : commands()) names.emplace_back(command.name);
  std::string given = arguments[0];
  if (given == "data") {
    if (arguments.size() < 2)
      fail(ExitCode::usage, "\"data\" needs one of: bert, vocab, idx, cifar, synth, pack, inspect");
    given += " " + arguments[1];
  }
  const std::string nearest = nearest_word(given, names);
  fail(ExitCode::usage, "there is no command \"{}\"{}; motley --help lists them", given,
       nearest.empty() ? "" : fmt::format(", did you mean \"{}\"?", nearest));
}

bool asks_for_help(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") return true;
  }
  return false;
}

int run(int argc, char** argv, const std::vector<std::string>& arguments) {
  std::optional<comm::MpiSession> opened;
  try {
    opened.emplace(&argc, &argv);
  } catch (const Error& error) {
    log::error("{}", error.what());
    return static_cast<int>(error.code());
  }
  comm::MpiSession& session = *opened;
  session.set_timeout(startup_timeout_s(arguments));
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  log::set_rank(rank);
  try {
    run_or_abort([&] {
      const comm::Communicator world(MPI_COMM_WORLD, startup_timeout_s(arguments));
      std::optional<Match> found;
      comm::agree(world, "reading the command", [&] {
        found = match(arguments);
        if (!found) fail_unknown_command(arguments);
      });
      const auto rest = arguments.begin() + static_cast<std::ptrdiff_t>(found->words);
      found->command->run({rest, arguments.end()}, {world, session});
    });
    return static_cast<int>(ExitCode::done);
  } catch (const AgreedError& error) {
    // Printed while the session lives: after it mpirun may end this process. The other ranks stay silent.
    const bool as_told = error.code() == ExitCode::stopped;
    if (rank == 0) as_told ? log::info("{}", error.what()) : log::error("{}", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace

const std::vector<Command>& commands() {
  static const std::vector<Command> list = {
      {"train", "train a network", train_help, train},
      {"eval", "metrics of a checkpoint on a data set", eval_help, eval},
      {"probe", "measures every rank and the network", probe_help, probe},
      {"plan", "what a cluster makes of a batch, and which nodes are worth using", plan_help, plan},
      {"import", "a Hugging Face BERT to a checkpoint", import_help, import_model},
      {"export", "a checkpoint to a Hugging Face BERT", export_help, export_model},
      {"data bert", "text to BERT training data", data_bert_help, data_bert},
      {"data vocab", "learns a BERT vocabulary from text", data_vocab_help, data_vocab},
      {"data idx", "IDX files (MNIST and its relatives) to HDF5", data_idx_help, data_idx},
      {"data cifar", "binary files of CIFAR-10 and CIFAR-100 to HDF5", data_cifar_help, data_cifar},
      {"data synth", "made-up images of any number and size", data_synth_help, data_synth},
      {"data pack", "BERT shards to one file that is read without decoding", data_pack_help, data_pack},
      {"data inspect", "what an HDF5 file holds", data_inspect_help, data_inspect},
  };
  return list;
}

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  // Under a limit on file sizes a write fails with a reason, which is said, instead of a signal that leaves
  // temporary files behind.
  std::signal(SIGXFSZ, SIG_IGN);
  // Help and version work without MPI, on a login node for instance.
  if (asks_for_help(arguments) || (arguments.size() == 1 && arguments[0] == "help")) {
    const std::optional<Match> found = match(arguments);
    std::fputs(found ? found->command->help().c_str() : overview().c_str(), stdout);
    return 0;
  }
  if (asks_for_archs(arguments)) {
    try {
      std::fputs(archs_text(arguments).c_str(), stdout);
      return 0;
    } catch (const Error& error) {
      log::error("{}", error.what());
      return static_cast<int>(error.code());
    }
  }
  if (arguments.size() == 1 && arguments[0] == "--version") {
    std::printf("motley %s\n", version);
    return 0;
  }
  return run(argc, argv, arguments);
}

}  // namespace motley::cli
