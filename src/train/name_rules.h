// How model directories of other programs name and store the parameters of a network, where that differs from
// how Motley does.
#pragma once

#include <string>
#include <vector>

namespace motley::train {

struct NameRules {
  // Files of a network without its heads lack `prefix` before names that begin with one of `beheaded`.
  std::string prefix{};
  std::vector<std::string> beheaded{};
  // Old endings of names and what they are today.
  struct Ending {
    std::string old_one, now;
  };
  std::vector<Ending> endings{};
  // Tensors that are the same as another one: a file may have both, when they are equal, or either.
  struct Tie {
    std::string name, to;
  };
  std::vector<Tie> ties{};
  // Tensors of integers that count 0, 1, 2, ...: no parameters, and nothing else can be in them.
  std::vector<std::string> counters{};
  // Endings of names of tensors that count steps: nothing here has a use for them.
  std::vector<std::string> step_counts{};
  // Parts that may be absent as a whole (heads that another task does not need).
  struct Part {
    std::string what, prefix;
  };
  std::vector<Part> optional_parts{};
};

}  // namespace motley::train
