// The sentence that wrong options are answered with.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.h"

namespace motley::test {

// What a call that must throw Error(usage) says; "no error" when it does not throw.
inline std::string usage_sentence(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "no error";
}

}  // namespace motley::test
