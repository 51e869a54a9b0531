// What every command does about wrong input and wrong options (law 8).
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/subprocess.h"

namespace motley::test {

// One sentence on standard error with all of the words in it, and `code` from mpirun and from every rank.
inline void expect_failure(const MpiRun& run, int code, const std::vector<std::string>& words) {
  EXPECT_EQ(run.job.exit_code, code) << run.job.err;
  for (std::size_t rank = 0; rank < run.exit_codes.size(); ++rank)
    EXPECT_EQ(run.exit_codes[rank], code) << "rank " << rank << "\n" << run.job.err;
  const std::size_t first = run.job.err.find("error: ");
  EXPECT_NE(first, std::string::npos) << run.job.err;
  EXPECT_EQ(run.job.err.find("error: ", first + 1), std::string::npos) << run.job.err;
  for (const std::string& word : words)
    EXPECT_NE(run.job.err.find(word), std::string::npos) << word << "\n" << run.job.err;
}

}  // namespace motley::test
