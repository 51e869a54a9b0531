// Running the program as a person would: in processes of its own, under mpirun.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace motley::test {

struct Finished {
  int exit_code = -1;  // 128 + signal when it was killed
  std::string out, err;
};

// Runs a program to its end, at most timeout_s (then it is killed, and exit_code is 137).
Finished run_program(const std::vector<std::string>& arguments, double timeout_s = 120,
                     const std::map<std::string, std::string>& environment = {});

// The program's own path, as built.
std::string motley_program();

struct MpiRun {
  Finished job;                 // of mpirun itself
  std::vector<int> exit_codes;  // of every rank; -1 when it left none
};

// mpirun -n ranks motley ARGUMENTS, with every rank's own exit code.
MpiRun run_motley(int ranks, const std::vector<std::string>& arguments, double timeout_s = 120,
                  const std::map<std::string, std::string>& environment = {});

// The words of that command line, to start it by hand.
std::vector<std::string> mpirun_command(int ranks, const std::vector<std::string>& arguments);

// One picture of the set below: 784 pixels, and its label.
std::vector<std::uint8_t> learnable_image(unsigned seed, std::uint32_t index, std::uint8_t* label);

// A small image set of 28 x 28 x 1 pictures that can be learned: class c has a bright block in a place of its
// own, over noise.
void write_learnable_images(const std::filesystem::path& path, int samples, unsigned seed);

}  // namespace motley::test
