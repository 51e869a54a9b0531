#include "support/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "core/philox.h"
#include "io/image_set.h"
#include "support/paths.h"

namespace motley::test {
namespace {

std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void redirect(const std::filesystem::path& path, int to) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0 || ::dup2(fd, to) < 0) ::_exit(127);
}

}  // namespace

Finished run_program(const std::vector<std::string>& arguments, double timeout_s,
                     const std::map<std::string, std::string>& environment) {
  const TemporaryDirectory directory;
  const auto out = directory.path() / "out", err = directory.path() / "err";
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    ::setpgid(0, 0);
    redirect("/dev/null", STDIN_FILENO);
    redirect(out, STDOUT_FILENO);
    redirect(err, STDERR_FILENO);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> words;
    for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
    words.push_back(nullptr);
    ::execvp(words[0], words.data());
    ::_exit(127);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout_s);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      break;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  Finished finished;
  finished.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  finished.out = slurp(out);
  finished.err = slurp(err);
  return finished;
}

std::string motley_program() {
  return MOTLEY_PROGRAM;
}

std::vector<std::string> mpirun_command(int ranks, const std::vector<std::string>& arguments) {
  // CI runs as root, and mpirun wants to be told twice that this is meant.
  std::istringstream words(
      "env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive "
      "OMPI_MCA_btl_vader_single_copy_mechanism=none ASAN_OPTIONS=detect_leaks=0 "
      "mpirun --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -x OMP_NUM_THREADS=1 -n");
  std::vector<std::string> command;
  for (std::string word; words >> word;) command.push_back(word);
  command.push_back(std::to_string(ranks));
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

MpiRun run_motley(int ranks, const std::vector<std::string>& arguments, double timeout_s,
                  const std::map<std::string, std::string>& environment) {
  // When one rank ends with a failure mpirun kills the others a second later; on a busy machine they may not
  // have come to their own end by then. So each rank leaves its code in a file, and mpirun hears of it only
  // when all have (or after 20 s, when the others do not end by themselves). A rank that MPI_Abort ends early
  // leaves none.
  const TemporaryDirectory codes;
  const std::string script =
      "trap '' TERM; dir=$1; shift; \"$@\"; code=$?; "
      "echo $code > $dir/new.$OMPI_COMM_WORLD_RANK; mv $dir/new.$OMPI_COMM_WORLD_RANK "
      "$dir/code.$OMPI_COMM_WORLD_RANK; tries=0; "
      "until set -- $dir/code.*; [ $# -ge $OMPI_COMM_WORLD_SIZE ] || [ $tries -ge 400 ]; do "
      "sleep 0.05; tries=$((tries + 1)); done; exit $code";
  std::vector<std::string> words = {"sh", "-c", script, "sh", codes.path().string(), motley_program()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  MpiRun run;
  run.job = run_program(mpirun_command(ranks, words), timeout_s, environment);
  for (int rank = 0; rank < ranks; ++rank) {
    std::ifstream file(codes.path() / ("code." + std::to_string(rank)));
    int code = -1;
    file >> code;
    run.exit_codes.push_back(code);
  }
  return run;
}

std::vector<std::uint8_t> learnable_image(unsigned seed, std::uint32_t index, std::uint8_t* label) {
  const RandomKey key(seed, Purpose::augmentation, 0, 0);
  *label = static_cast<std::uint8_t>(random_u32(key, index, 1000) % 10);
  std::vector<std::uint8_t> image(784);
  for (std::uint32_t p = 0; p < 784; ++p) {
    const bool bright = p / 28 / 5 == *label / 2u && p % 28 / 14 == *label % 2u;
    image[p] = static_cast<std::uint8_t>(random_u32(key, index, p) % 120 + (bright ? 80 : 0));
  }
  return image;
}

void write_learnable_images(const std::filesystem::path& path, int samples, unsigned seed) {
  io::ImageSetWriter writer(path.string(), static_cast<std::uint64_t>(samples), 28, 28, 1);
  for (int i = 0; i < samples; ++i) {
    std::uint8_t label = 0;
    const std::vector<std::uint8_t> image = learnable_image(seed, static_cast<std::uint32_t>(i), &label);
    writer.append(image.data(), &label, 1);
  }
  writer.finish();
}

}  // namespace motley::test
