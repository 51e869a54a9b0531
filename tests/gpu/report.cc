// gpu_report: what tests/gpu/run knows, as records (a line of JSON each) and as a table.
//
//   gpu_report record KIND KEY=VALUE...          a record of that kind; values that read as numbers or truths become them
//   gpu_report tests NAME SECONDS CODE [FILE]    a record of a test program that ended with exit code CODE after so many
//                                                seconds; FILE is what --gtest_output=json: left, if it did
//   gpu_report table OUT.json RECORDS            reads the records, writes all of them to one file, prints the table, and
//                                                ends with 1 when something failed
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"

namespace {

using namespace motley;  // NOLINT: a program of one file
using Json = nlohmann::ordered_json;

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

Json value_of(const std::string& text) {
  const Json parsed = Json::parse(text, nullptr, false);
  return parsed.is_number() || parsed.is_boolean() ? parsed : Json(text);
}

Json make_record(const std::vector<std::string>& arguments) {
  Json record{{"bench", arguments.at(0)}};
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::size_t equals = arguments[i].find('=');
    if (equals == std::string::npos) fail(ExitCode::usage, "{} is not KEY=VALUE", arguments[i]);
    record[arguments[i].substr(0, equals)] = value_of(arguments[i].substr(equals + 1));
  }
  return record;
}

Json make_tests_record(const std::vector<std::string>& arguments) {
  const int code = std::stoi(arguments.at(2));
  Json record{
      {"bench", "tests"}, {"name", arguments[0]}, {"seconds", std::stod(arguments[1])}, {"exit_code", code}};
  const Json results = arguments.size() > 3 ? Json::parse(read(arguments[3]), nullptr, false) : Json();
  if (results.is_object()) {
    int passed = 0, skipped = 0;
    Json failed = Json::array();
    for (const Json& suite : results["testsuites"]) {
      for (const Json& test : suite["testsuite"]) {
        if (test.contains("failures")) {
          failed.push_back(suite["name"].get<std::string>() + "." + test["name"].get<std::string>());
        } else {
          ++(test["result"] == "SKIPPED" ? skipped : passed);
        }
      }
    }
    record["passed"] = passed;
    record["skipped"] = skipped;
    record["failed"] = failed;
  }
  // A program that was killed, or a failure on another rank.
  record["correct"] = code == 0;
  return record;
}

// Records of one kind; all of them by kind are the file's content.
class Records {
 public:
  explicit Records(const std::string& path) {
    std::istringstream lines(read(path));
    for (std::string line; std::getline(lines, line);) {
      Json record = Json::parse(line, nullptr, false);
      if (record.is_object() && record.contains("bench")) all_.push_back(std::move(record));
    }
  }

  std::vector<Json> of(const std::string& kind) const {
    std::vector<Json> found;
    std::copy_if(all_.begin(), all_.end(), std::back_inserter(found),
                 [&](const Json& record) { return record["bench"] == kind; });
    return found;
  }

  std::vector<std::string> failures() const {
    std::vector<std::string> found;
    for (const Json& record : all_) {
      const bool has_error = record.contains("error") && record["error"].is_string();
      if (record.value("correct", true) && !has_error) continue;
      std::string text = record["bench"];
      for (const char* key : {"name", "op", "type", "model", "seq", "side", "precision", "shape"}) {
        if (!record.contains(key)) continue;
        text += ' ';
        text += record[key].is_string() ? record[key].get<std::string>() : record[key].dump();
      }
      if (record.contains("failed"))
        for (const Json& test : record["failed"]) text += "\n    " + test.get<std::string>();
      found.push_back(text);
    }
    return found;
  }

  const std::vector<Json>& all() const { return all_; }

 private:
  std::vector<Json> all_;
};

// A number with so many digits after the point, or what stands for none.
std::string cell(const Json& record, const char* key, int digits, double factor = 1) {
  if (!record.contains(key) || !record[key].is_number()) return "-";
  return fmt::format("{:.{}f}", factor * record[key].get<double>(), digits);
}

std::string text(const Json& record, const char* key) {
  if (!record.contains(key)) return "-";
  return record[key].is_string() ? record[key].get<std::string>() : record[key].dump();
}

void print_tests(const std::vector<Json>& tests) {
  if (tests.empty()) return;
  fmt::print("\n{:<44} {:>7} {:>7} {:>8} {:>8}\n", "tests", "passed", "failed", "skipped", "seconds");
  for (const Json& t : tests) {
    const std::string failed = t.contains("failed") ? std::to_string(t["failed"].size()) : "?";
    fmt::print("{:<44} {:>7} {:>7} {:>8} {:>8}{}\n", text(t, "name"), text(t, "passed"), failed,
               text(t, "skipped"), cell(t, "seconds", 1),
               t["exit_code"] == 0 ? "" : fmt::format("  ended with code {}", t["exit_code"].dump()));
  }
}

void print_kernels(const std::vector<Json>& ceilings, const std::vector<Json>& kernels) {
  for (const Json& c : ceilings) {
    fmt::print("\nmeasured: copy {} GB/s", cell(c, "copy_gb_per_s", 1));
    for (const auto& [type, rate] : c["matmul_tflops"].items())
      fmt::print(", {} product {:.4g} TFLOP/s", type, rate.get<double>());
    fmt::print("\n");
  }
  if (kernels.empty()) return;
  fmt::print("\n{:<26} {:<9} {:<26} {:>10} {:>8} {:>8} {:>7} {:>8}\n", "operation", "type", "shape", "us",
             "GB/s", "TFLOP/s", "bound", "of bound");
  for (const Json& k : kernels) {
    fmt::print("{:<26} {:<9} {:<26} ", text(k, "op"), text(k, "type"), text(k, "shape"));
    if (k.contains("skipped")) {
      fmt::print("{}\n", text(k, "skipped"));
      continue;
    }
    fmt::print("{:>10} {:>8} {:>8} {:>7} {:>8}{}\n", cell(k, "us", 1), cell(k, "gb_per_s", 0),
               cell(k, "tflops", 1), text(k, "bound"), cell(k, "of_bound", 2),
               k.value("correct", false) ? "" : "  WRONG, error " + text(k, "error"));
  }
}

// What steps are of, and how their records name it.
struct StepKind {
  const char* bench;  // of "bert_step" and "bert_check"
  const char* of;
  const char *size, *rate, *rate_title;
};
constexpr StepKind step_kinds[] = {{"bert", "BERT-", "seq", "sequences_per_s", "seq/s"},
                                   {"image", "", "side", "images_per_s", "images/s"}};

void print_steps(const StepKind& kind, const std::vector<Json>& checks, const std::vector<Json>& steps) {
  for (const Json& c : checks)
    fmt::print("\ntwo steps of {}{} in {} against the CPU: largest difference {}{}", kind.of,
               text(c, "model"), text(c, "precision"), text(c, "difference"),
               c.value("correct", false) ? "" : "  WRONG");
  if (!checks.empty()) fmt::print("\n");
  if (steps.empty()) return;
  fmt::print("\n{:<18} {:>5} {:>4} {:<5} {:>9} {:>9} {:>9} {:>8} {:>6} {:>12} {:>6}  {}\n", "step", "batch",
             kind.size, "type", "ms", "plain ms", kind.rate_title, "TFLOP/s", "MFU", "PyTorch ms", "ratio",
             "PyTorch's network");
  for (const Json& s : steps) {
    fmt::print("{:<18} {:>5} {:>4} {:<5} ", text(s, "model"), text(s, "batch"), text(s, kind.size),
               text(s, "precision"));
    if (s.contains("skipped") || !s.contains("ms")) {
      fmt::print("{}\n", s.contains("skipped") ? text(s, "skipped") : text(s, "error"));
      continue;
    }
    const Json peer = s.value("peer", Json::object());
    fmt::print("{:>9} {:>9} {:>9} {:>8} {:>6} {:>12} {:>6}  {}{}\n", cell(s, "ms", 2), cell(s, "plain_ms", 2),
               cell(s, kind.rate, 1), cell(s, "tflops", 1), cell(s, "mfu", 2), cell(peer, "ms", 2),
               cell(s, "ratio", 2),
               peer.empty() ? "" : text(peer, "network") + ", compiled: " + text(peer, "compiled"),
               s.contains("note") ? "  " + text(s, "note") : "");
  }
}

void print_peers(const std::vector<Json>& peers) {
  std::string before;
  for (const Json& p : peers) {
    const std::string line = fmt::format("peer: PyTorch {}, CUDA {}", text(p, "torch"), text(p, "cuda"));
    if (line != before) fmt::print("\n{}\n", line);
    before = line;
  }
}

int print_table(const std::string& out, const std::string& path) {
  const Records records(path);
  for (const Json& m : records.of("machine")) {
    for (const auto& [key, value] : m.items())
      if (key != "bench")
        fmt::print("{}: {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
  print_tests(records.of("tests"));
  print_kernels(records.of("ceilings"), records.of("kernel"));
  print_peers(records.of("peer"));
  for (const StepKind& kind : step_kinds) {
    const std::string bench = kind.bench;
    print_steps(kind, records.of(bench + "_check"), records.of(bench + "_step"));
  }

  const std::vector<std::string> failures = records.failures();
  Json all;
  for (const char* kind : {"machine", "tests", "ceilings", "kernel", "peer", "bert_check", "bert_step",
                           "image_check", "image_step", "part"}) {
    all[kind] = Json::array();
    for (Json record : records.of(kind)) {
      record.erase("bench");
      all[kind].push_back(std::move(record));
    }
  }
  all["failures"] = failures;
  std::ofstream file(out);
  file << all.dump(1) << '\n';
  file.close();
  if (!file) fail(ExitCode::input, "{} could not be written", out);
  fmt::print("\n");
  if (records.all().empty()) fail(ExitCode::internal, "{} has no records: nothing was run", path);
  if (failures.empty()) {
    fmt::print("All tests passed and all results were correct.\n");
    return 0;
  }
  fmt::print("FAILED:\n");
  for (const std::string& failure : failures) fmt::print("  {}\n", failure);
  return 1;
}

int run(const std::vector<std::string>& arguments) {
  const std::string what = arguments.empty() ? "--help" : arguments[0];
  const std::vector<std::string> rest(arguments.empty() ? arguments.end() : arguments.begin() + 1,
                                      arguments.end());
  if (what == "record" && !rest.empty()) {
    fmt::print("{}\n", make_record(rest).dump());
  } else if (what == "tests" && rest.size() >= 3) {
    fmt::print("{}\n", make_tests_record(rest).dump());
  } else if (what == "table" && rest.size() == 2) {
    return print_table(rest[0], rest[1]);
  } else if (what == "--help") {
    fmt::print(
        "gpu_report record KIND KEY=VALUE... | tests NAME SECONDS CODE [FILE] | table OUT.json RECORDS\n");
  } else {
    fail(ExitCode::usage, "gpu_report: not understood: {}", what);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const Error& error) {
    fmt::print(stderr, "gpu_report: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_report: {}\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
}
