#include "report/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "core/error.h"
#include "core/files.h"
#include "core/json.h"
#include "core/log.h"

namespace motley::report {
namespace {

using OrderedJson = nlohmann::ordered_json;

// nlohmann-json writes the shortest digits that read back as the same double, and null for what is not
// finite.
std::string dump(const OrderedJson& line) {
  return line.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

void add_metrics(OrderedJson& line, const std::vector<std::pair<std::string, double>>& metrics) {
  for (const auto& [name, value] : metrics) {
    MOTLEY_CHECK(!line.contains(name));
    line[name] = value;
  }
}

// Is `text` a whole record of a step that the run still stands by?
bool keeps(std::string_view text, std::int64_t last_step) {
  const Json line = Json::parse(text, nullptr, false);
  if (!line.is_object()) return false;
  const auto step = line.find("step");
  return step != line.end() && step->is_number_integer() && step->get<std::int64_t>() <= last_step;
}

// Rewrites the file only where something has to go, and atomically: a kill in the middle must not cost the
// record of the whole run.
void drop_lines_after(const std::filesystem::path& path, std::int64_t last_step) {
  const std::string content = read_file(path, ExitCode::input);
  std::string kept;
  kept.reserve(content.size());
  for (std::string_view rest = content; !rest.empty();) {
    const std::size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (!keeps(line, last_step)) continue;
    kept += line;
    kept += '\n';
  }
  if (kept != content) write_file_atomically(path, kept, ExitCode::input);
}

}  // namespace

std::string to_json_line(const StepRecord& record) {
  const auto steps = static_cast<double>(record.steps);
  OrderedJson line;
  line["step"] = record.step;
  line["epoch"] = record.epoch;
  line["loss"] = record.loss;
  line["lr"] = record.lr;
  line["grad_norm"] = record.grad_norm;
  if (record.loss_scale > 0) line["loss_scale"] = record.loss_scale;
  line["samples_per_s"] = static_cast<double>(record.samples) / record.step_s;
  line["step_s"] = record.step_s / steps;
  add_metrics(line, record.metrics);
  OrderedJson& ranks = line["ranks"] = OrderedJson::array();
  for (const RankTime& rank : record.ranks) {
    OrderedJson of = {{"n", rank.n},
                      {"compute_s", rank.compute_s / steps},
                      {"wait_s", rank.wait_s / steps},
                      {"read_s", rank.read_s / steps},
                      {"sleep_s", rank.sleep_s / steps},
                      {"micro_batches", static_cast<double>(rank.micro_batches) / steps}};
    if (rank.micro_batches > 0) of["micro_batch_s"] = rank.micro_s / static_cast<double>(rank.micro_batches);
    ranks.push_back(std::move(of));
  }
  return dump(line);
}

std::string to_json_line(const ValidRecord& record) {
  OrderedJson line;
  line["valid"] = record.subset;
  line["step"] = record.step;
  line["epoch"] = record.epoch;
  line["loss"] = record.loss;
  line["samples"] = record.samples;
  line["seconds"] = record.seconds;
  add_metrics(line, record.metrics);
  return dump(line);
}

MetricsFile::MetricsFile(const std::filesystem::path& path, std::int64_t last_step) : path_(path) {
  std::error_code ignored;
  if (last_step > 0 && std::filesystem::is_regular_file(path, ignored)) drop_lines_after(path, last_step);
  const int fresh = last_step > 0 ? 0 : O_TRUNC;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | fresh, 0666);
  if (fd_ < 0) fail(ExitCode::input, "cannot write {}: {}", path.string(), system_message(errno));
}

MetricsFile::~MetricsFile() {
  if (fd_ >= 0) ::close(fd_);
}

void MetricsFile::add(const StepRecord& record) {
  add_line(to_json_line(record));
}

void MetricsFile::add(const ValidRecord& record) {
  add_line(to_json_line(record));
}

void MetricsFile::add_line(std::string line) {
  line += '\n';
  ssize_t written = 0;
  do {
    written = ::write(fd_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) return;
  const std::string reason = written < 0 ? system_message(errno) : "the disk is full";
  if (written > 0) {
    // Half a line would spoil the next one too.
    const off_t end = ::lseek(fd_, 0, SEEK_END);
    if (end >= written && ::ftruncate(fd_, end - written) != 0)
      log::warn("{} has a torn line", path_.string());
  }
  if (!warned_) log::warn("cannot write {}: {}; training goes on without it", path_.string(), reason);
  warned_ = true;
}

}  // namespace motley::report
